"""Invalid inputs for every decoder of OTLP and OTAP: each answers, in bounded memory, and the answers agree."""

import random
from pathlib import Path

import pytest
from otap_fuzz import DECODERS, STUMBLED, storm

from quiver.otap import decode_requests
from quiver.otap.wire_schema import decode_compiled


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


def test_a_panic_of_the_compiled_decoder_costs_only_its_request():
    """Its length passes the end of a message. The requests next to it are decoded."""
    invalid = (STUMBLED / "rows_logs-f9655b45c572c7e1.bin").read_bytes()
    valid = (Path(__file__).parents[1] / "vectors" / "otlp" / "logs_sdk_000.pb").read_bytes()
    rows = decode_requests([valid], "logs").rows
    decoded = decode_requests([valid, invalid, valid], "logs")
    assert [number for number, _ in decoded.bad] == [1]
    assert decoded.batch.num_rows == 2 * rows[0]


def test_only_panics_are_turned_into_errors():
    """An interrupt of the program is not an answer about the bytes."""

    def interrupted(messages):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_compiled(interrupted, [])
