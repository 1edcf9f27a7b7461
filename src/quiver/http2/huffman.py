"""The Huffman code of HPACK (RFC 7541, Appendix B)."""

from __future__ import annotations

from functools import cache

__all__ = ["huffman_decode"]

_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606"
    "060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605060506060605070706060605"
    "06070605050607070707070f0b0e0d1c141614141616161716171717171718171818161718171717171516171617171816151416161717151"
    "716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14"
    "181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""The number of bits of each symbol. The code is canonical: these determine the bits. The last symbol ends a text."""

_END = 256
_PADDING_BITS_MAX = 7


@cache
def _steps() -> list[tuple[int, int, bool] | None]:
    """
    Return the decoder as a state machine: 16 × state + four bits → the next state, the symbol (or -1), and whether a
    text may end there; None for bits that no text has. A step yields at most one symbol, as each has five bits or more.
    """
    code, before = 0, 0
    children: list[list[int]] = [[-1, -1]]
    symbols: dict[int, int] = {}
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_LENGTHS)):
        code <<= bits - before
        node = 0
        for at in range(bits - 1, -1, -1):
            branch = code >> at & 1
            if children[node][branch] < 0:
                children[node][branch] = len(children)
                children.append([-1, -1])
            node = children[node][branch]
        symbols[node] = symbol
        code, before = code + 1, bits
    padding, node = {0}, 0
    for _ in range(_PADDING_BITS_MAX):
        node = children[node][1]
        padding.add(node)
    steps: list[tuple[int, int, bool] | None] = []
    for state in range(len(children)):
        for nibble in range(16):
            node, found = state, -1
            for at in (3, 2, 1, 0):
                node = children[node][nibble >> at & 1] if node >= 0 else -1
                if node in symbols:
                    found, node = symbols[node], 0
            steps.append(None if node < 0 or found == _END else (node, found, node in padding))
    return steps


def huffman_decode(data: bytes) -> bytes | None:
    """Return the text, or None if the code or its padding is invalid."""
    steps = _steps()
    out = bytearray()
    state, may_end = 0, True
    for byte in data:
        for nibble in (byte >> 4, byte & 15):
            step = steps[state * 16 + nibble]
            if step is None:
                return None
            state, symbol, may_end = step
            if symbol >= 0:
                out.append(symbol)
    return bytes(out) if may_end else None
