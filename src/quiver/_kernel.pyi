# Functions of the compiled kernel; `quiver.primitives.kernel` imports it.

from typing_extensions import Buffer

API: int

def crc32(data: Buffer, value: int = 0, /) -> int: ...
def crc64_nvme(data: Buffer, value: int = 0, /) -> int: ...
def scan_records(
    view: Buffer, offset: int, limit: int, batch_bytes: int, crc64: int, /
) -> tuple[int, int, int, int, int]: ...
