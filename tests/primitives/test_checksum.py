"""Checksums have their published values, with the fast library and without it."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import zlib

import pytest

from quiver.primitives import checksum

CHECK = b"123456789"


@pytest.fixture(params=["fast", "fallback"])
def crc(request, monkeypatch):
    """The module as imported with and without isal."""
    if request.param == "fast":
        yield checksum
        return
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    functions = checksum._crc32_functions()
    assert functions == (zlib.crc32, checksum._crc32_combine_in_python)
    monkeypatch.setattr(checksum, "crc32", functions[0])
    monkeypatch.setattr(checksum, "crc32_combine", functions[1])
    yield checksum


def test_known_answers(crc):
    """The check values of the catalog of CRCs."""
    assert crc.crc32(CHECK) == 0xCBF43926
    assert crc.crc32c(CHECK) == 0xE3069283
    assert crc.crc64_nvme(CHECK) == 0xAE8B14860A799888
    assert crc.fold64to32(crc.crc64_nvme(CHECK)) == 0xA4F28C0E


@pytest.mark.parametrize("name", ["crc32", "crc32c", "crc64_nvme"])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_continued(crc, name, wrap):
    """Continuing the checksum of a piece with the next piece gives that of both; no bytes have checksum 0."""
    function = getattr(crc, name)
    data = random.Random(7).randbytes(5000)

    for cut in (0, 1, 63, 64, 4096, 5000):
        assert function(wrap(data)) == function(wrap(data[cut:]), function(wrap(data[:cut])))
    assert function(wrap(b"")) == 0


def test_combine_joins_two_checksums(crc):
    """The checksum of two buffers is computed without reading them again."""
    chance = random.Random(11)
    for len_a, len_b in [(0, 0), (0, 5), (5, 0), (1, 1), (100, 8192), (3, 65_537), (70_000, 12)]:
        a, b = chance.randbytes(len_a), chance.randbytes(len_b)

        assert crc.crc32(a + b) == crc.crc32_combine(crc.crc32(a), crc.crc32(b), len_b)


def test_the_fast_library_is_used_if_it_is_installed():
    """The wheel is a dependency on this platform, so it must be used here."""
    assert checksum.crc32 is importlib.import_module("isal.isal_zlib").crc32


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("b")])
def test_crc32c_in_python_equals_the_library(wrap):
    chance = random.Random(13)
    library = checksum._aws().crc32c
    for size in range(0, 300, 7):
        data, before = chance.randbytes(size), chance.getrandbits(32)
        assert checksum._crc32c_in_python(wrap(data), before) == library(data, before)


def test_awscrt_is_not_loaded_before_it_is_needed():
    """It takes 40 ms to import, which a process that needs only CRC-32, or the CRC-32C of 64 KiB in total, avoids."""
    script = (
        "import sys; from quiver.primitives import checksum; assert 'awscrt' not in sys.modules;"
        "found = [checksum.crc32c(bytes(32_768)) for _ in range(2)]; assert 'awscrt' not in sys.modules;"
        "found.append(checksum.crc32c(bytes(32_768))); assert len(set(found)) == 1;"
        "assert ('awscrt' in sys.modules) == (checksum.KERNEL is None)"
    )

    for pure in ("", "1"):
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "QUIVER_PURE": pure})


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("b")])
def test_crc64_in_python_equals_the_library(wrap):
    """For each length around whole words of eight bytes, continued from any value."""
    chance = random.Random(17)
    library = checksum._aws().crc64nvme
    for size in [*range(34), 1000, 4099]:
        data, before = chance.randbytes(size), chance.getrandbits(64)
        assert checksum._crc64_in_python(wrap(data), before) == library(data, before)


def test_a_log_is_written_and_read_without_awscrt(tmp_path):
    """The library is an extra: a log that is written without it is read with it, and the other way round."""
    script = """
import sys
if sys.argv[2] == "without":
    sys.modules["awscrt"] = None
from quiver.aof import AofManager
with AofManager.open(sys.argv[1]) as manager:
    log = manager.log(sys.argv[3])
    if len(sys.argv) > 4:
        print(log.append_record_with_timeout(b"payload", 5))
        log.flush()
    else:
        first = int(sys.stdin.read())
        print(log.read_record(first).payload == b"payload")
assert ("awscrt.checksums" in sys.modules) == (sys.argv[2] == "with")
"""

    def run(*arguments, given=""):
        argv = [sys.executable, "-c", script, str(tmp_path / "log"), *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=given).stdout

    for writer, reader in (("without", "with"), ("with", "without")):
        record = run(writer, writer, "append")
        assert run(reader, writer, given=record) == "True\n"
