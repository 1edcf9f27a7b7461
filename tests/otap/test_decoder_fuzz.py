"""Invalid inputs for every decoder of OTLP and OTAP: each answers, in bounded memory, and the answers agree."""

import random

import pytest
from otap_fuzz import DECODERS, STUMBLED, storm


@pytest.mark.parametrize("name", list(DECODERS))
def test_invalid_inputs_get_an_answer(name):
    storm(name, 60, random.randrange(2**32), keep=False)


@pytest.mark.parametrize("path", sorted(STUMBLED.glob("*.bin")), ids=lambda path: path.stem)
def test_inputs_that_once_failed_get_an_answer(path):
    decode, _ = DECODERS[path.stem.rpartition("-")[0]]
    decode(path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", list(DECODERS))
def test_very_many_invalid_inputs_get_an_answer(name, pytestconfig):
    """`make fuzz` runs a million for each decoder; inputs with new answers are the samples of the next run."""
    storm(name, pytestconfig.getoption("--fuzz-inputs"), random.randrange(2**32), keep=True)
