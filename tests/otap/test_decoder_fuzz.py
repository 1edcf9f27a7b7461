"""Broken inputs for every decoder of OTLP and OTAP: each gets an answer, in bounded memory, and the answers agree."""

import random

import pytest
from otap_fuzz import DECODERS, STUMBLED, storm


@pytest.mark.parametrize("name", list(DECODERS))
def test_some_broken_inputs(name):
    storm(name, 60, random.randrange(2**32), keep=False)


@pytest.mark.parametrize("path", sorted(STUMBLED.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_stumbled_over_once(path):
    decode, _ = DECODERS[path.stem.rpartition("-")[0]]
    decode(path.read_bytes())


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", list(DECODERS))
def test_very_many_broken_inputs(name, pytestconfig):
    """`make fuzz` asks for a million for each decoder; what brought new answers is where the next run begins."""
    storm(name, pytestconfig.getoption("--fuzz-inputs"), random.randrange(2**32), keep=True)
