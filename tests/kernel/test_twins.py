"""Every function of the kernel does what its twin does, for golden files, fuzz inputs, and damaged files."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twin_inputs import FUZZ, INPUTS, golden_bytes, golden_files
from twins import TWINS, Twin


def assert_same(kernel, name: str, twin: Twin, data: bytes) -> None:
    compiled = twin.compiled or getattr(kernel, name)
    assert twin.call(compiled, data) == twin.call(twin.python, data), data


def test_every_function_is_in_the_table(kernel):
    """A new function of the kernel has a line in `TWINS`."""
    functions = {name for name, value in vars(kernel).items() if callable(value) and not name.startswith("__")}
    assert set(TWINS) == functions


def assert_all_same(
    kernel, name: str, source: Callable[[random.Random], Iterable[bytes]], count_max: int | None = None
) -> None:
    """Compare the twins for all inputs of a source, or for a random sample of `count_max` inputs."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    try:
        inputs = source(dice)
        if count_max is not None:
            every = list(inputs)
            inputs = dice.sample(every, min(count_max, len(every)))
        for data in inputs:
            assert_same(kernel, name, TWINS[name], data)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("source", INPUTS)
@pytest.mark.parametrize("name", TWINS)
def test_twins_agree(kernel, name, source, pytestconfig):
    """Both do the same for golden files and bytes, and for damaged ones; other inputs in every run."""
    assert_all_same(kernel, name, INPUTS[source], pytestconfig.getoption("--twin-inputs"))


@pytest.mark.slow
@pytest.mark.parametrize("source", INPUTS)
@pytest.mark.parametrize("name", TWINS)
def test_twins_agree_on_every_input(kernel, name, source):
    """For every bit and every length of damaged bytes."""
    assert_all_same(kernel, name, INPUTS[source])


@pytest.mark.parametrize("source", FUZZ)
@pytest.mark.parametrize("name", TWINS)
def test_twins_agree_on_fuzz_inputs(kernel, name, source, pytestconfig):
    """Both do the same for inputs of the fuzz tests."""
    assert_all_same(kernel, name, lambda dice: FUZZ[source](dice, 100), pytestconfig.getoption("--twin-inputs"))


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("source", FUZZ)
@pytest.mark.parametrize("name", TWINS)
def test_twins_agree_on_very_many_fuzz_inputs(kernel, name, source, pytestconfig):
    """`make fuzz` compares them for a million inputs of each fuzz test."""
    assert_all_same(kernel, name, lambda dice: FUZZ[source](dice, pytestconfig.getoption("--fuzz-inputs")))


@pytest.mark.parametrize("name", TWINS)
@given(data=st.binary(max_size=600))
def test_twins_agree_on_any_bytes(kernel, name, data):
    """Both do the same for any bytes."""
    assert_same(kernel, name, TWINS[name], data)


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_that_differs_is_noticed(kernel, name):
    """The comparison fails for a twin whose results are those of other bytes."""
    twin = TWINS[name]
    other = replace(twin, call=lambda function, data: twin.call(function, data if function is twin.python else b"?"))
    with pytest.raises(AssertionError):
        for data in golden_bytes():
            assert_same(kernel, name, other, data)


def test_sources_have_inputs():
    """Each source has many different inputs, and the golden ones are those of the repository."""
    assert len(golden_files()) > 150
    assert len(golden_bytes()) > 30
    for name, source in INPUTS.items():
        assert len(set(source(random.Random(1)))) > 30, name
    for name, source in FUZZ.items():
        assert len(set(source(random.Random(1), 20))) > 30, name
