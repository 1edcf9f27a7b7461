"""HPACK (RFC 7541): a decoder with bounded memory, and an encoder without a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from quiver.http2.huffman import huffman_decode
from quiver.primitives.scan import Damage

__all__ = ["HeaderDecoder", "Headers", "encode_headers", "list_bytes"]

Headers = list[tuple[bytes, bytes]]

TABLE_BYTES_MAX = 4096
"""The size of the dynamic table unless a setting says otherwise."""

_ENTRY_OVERHEAD = 32
_MEMO_ENTRIES_MAX = 16
_MEMO_BYTES_MAX = 1024
_INTEGER_BYTES_MAX = 5

_STATIC_TEXT = (
    ":authority\n:method=GET\n:method=POST\n:path=/\n:path=/index.html\n:scheme=http\n:scheme=https\n:status=200\n"
    ":status=204\n:status=206\n:status=304\n:status=400\n:status=404\n:status=500\naccept-charset\n"
    "accept-encoding=gzip, deflate\naccept-language\naccept-ranges\naccept\naccess-control-allow-origin\nage\nallow\n"
    "authorization\ncache-control\ncontent-disposition\ncontent-encoding\ncontent-language\ncontent-length\n"
    "content-location\ncontent-range\ncontent-type\ncookie\ndate\netag\nexpect\nexpires\nfrom\nhost\nif-match\n"
    "if-modified-since\nif-none-match\nif-range\nif-unmodified-since\nlast-modified\nlink\nlocation\nmax-forwards\n"
    "proxy-authenticate\nproxy-authorization\nrange\nreferer\nrefresh\nretry-after\nserver\nset-cookie\n"
    "strict-transport-security\ntransfer-encoding\nuser-agent\nvary\nvia\nwww-authenticate"
)
_STATIC: tuple[tuple[bytes, bytes], ...] = tuple(
    (name.encode(), value.encode()) for name, _, value in (line.partition("=") for line in _STATIC_TEXT.split("\n"))
)
_STATIC_INDEX = {entry: index for index, entry in enumerate(_STATIC, 1)}


class _InvalidBlockError(Exception):
    """A header block is invalid; the argument is the reason."""


class HeaderDecoder:
    """
    Decodes the header blocks of one direction of a connection, in order.

    Args:
        list_bytes_max: the maximum size of a decoded list, as RFC 9113 counts it.
    """

    def __init__(self, *, list_bytes_max: int) -> None:
        self._list_bytes_max = list_bytes_max
        self._dynamic: deque[tuple[bytes, bytes]] = deque()
        self._dynamic_bytes = 0
        self._table_bytes_max = TABLE_BYTES_MAX
        self._memo: dict[bytes, Headers] = {}

    def try_decode(self, block: bytes) -> Headers | Damage:
        """
        Return the headers of *block*, or the damage, after which the decoder cannot be used any more.

        The result may be shared between calls.
        """
        known = self._memo.get(block)
        if known is not None:
            return known
        try:
            headers, is_stateless = self._decode(block)
        except (_InvalidBlockError, IndexError) as invalid:
            return Damage(0, f"invalid header block: {invalid}")
        if is_stateless and len(block) <= _MEMO_BYTES_MAX and len(self._memo) < _MEMO_ENTRIES_MAX:
            self._memo[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[Headers, bool]:
        headers: Headers = []
        is_stateless = True
        size = at = 0
        while at < len(block):
            first = block[at]
            if first >= 0x80:
                index, at = _integer(block, at, 7)
                entry = self._entry(index)
            elif first & 0xE0 == 0x20:
                if headers:
                    raise _InvalidBlockError("the table size changes after a header")
                at = self._resize(block, at)
                is_stateless = False
                continue
            else:
                is_kept = first >= 0x40
                index, at = _integer(block, at, 6 if is_kept else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = self._text(block, at)
                value, at = self._text(block, at)
                entry = (name, value)
                if is_kept:
                    self._keep(entry)
                    is_stateless = False
            size += len(entry[0]) + len(entry[1]) + _ENTRY_OVERHEAD
            if size > self._list_bytes_max:
                raise _InvalidBlockError(f"more than {self._list_bytes_max} bytes of headers")
            headers.append(entry)
        return headers, is_stateless

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if len(_STATIC) < index <= len(_STATIC) + len(self._dynamic):
            return self._dynamic[index - len(_STATIC) - 1]
        raise _InvalidBlockError(f"the index {index} is in no table")

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        is_huffman = block[at] >= 0x80
        length, at = _integer(block, at, 7)
        end = at + length
        if end > len(block):
            raise _InvalidBlockError("a text is longer than its block")
        text = block[at:end]
        if is_huffman:
            decoded = huffman_decode(text)
            if decoded is None:
                raise _InvalidBlockError("invalid Huffman code")
            text = decoded
        return text, end

    def _keep(self, entry: tuple[bytes, bytes]) -> None:
        self._memo.clear()
        self._dynamic.appendleft(entry)
        self._dynamic_bytes += len(entry[0]) + len(entry[1]) + _ENTRY_OVERHEAD
        self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        size, at = _integer(block, at, 5)
        if size > TABLE_BYTES_MAX:
            raise _InvalidBlockError(f"a table of {size} bytes; the maximum is {TABLE_BYTES_MAX}")
        self._memo.clear()
        self._table_bytes_max = size
        self._evict()
        return at

    def _evict(self) -> None:
        while self._dynamic_bytes > self._table_bytes_max:
            name, value = self._dynamic.pop()
            self._dynamic_bytes -= len(name) + len(value) + _ENTRY_OVERHEAD


def _integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    """Return an integer and its end."""
    most = (1 << prefix_bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _InvalidBlockError("an integer is too long")


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode *headers* without the dynamic table and without Huffman code."""
    out = bytearray()
    for name, value in headers:
        index = _STATIC_INDEX.get((name, value))
        if index is not None:
            out.append(0x80 | index)
            continue
        out.append(0)
        _append_text(out, name)
        _append_text(out, value)
    return bytes(out)


def _append_text(out: bytearray, text: bytes) -> None:
    length = len(text)
    if length < 127:
        out.append(length)
    else:
        out.append(127)
        length -= 127
        while length >= 128:
            out.append(length % 128 + 128)
            length //= 128
        out.append(length)
    out += text


def list_bytes(headers: Headers) -> int:
    """Return the size of *headers* as RFC 9113 counts it."""
    return sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in headers)
