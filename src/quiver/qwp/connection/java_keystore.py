"""
Decoding of Java key stores (JKS): trusted certificates, and a checksum that needs the password. No I/O.

::

    0   u32 magic       0xFEEDFEED; all numbers big-endian
    4   u32 version     1 or 2
    8   u32 entries
    12  per entry       u32 tag, u16 length and alias, u64 milliseconds since the epoch
          tag 2         a certificate
          tag 1         u32 length and an encrypted key, u32 count and as many certificates
    certificate         u16 length and type (version 2 only), u32 length and DER
    end 20 bytes        SHA-1 of the password (UTF-16BE), "Mighty Aphrodite", and everything before

Only entries with tag 2 are trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = ["JAVA_KEYSTORE_MAGIC", "decode_java_keystore"]

JAVA_KEYSTORE_MAGIC = b"\xfe\xed\xfe\xed"
_HEAD = struct.Struct(">4sII")
_TAG = struct.Struct(">I")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_DATE_BYTES = 8
_DIGEST_BYTES = 20
_KEY, _CERTIFICATE = 1, 2
_SALT = b"Mighty Aphrodite"


def decode_java_keystore(view: memoryview, password: str) -> Answer[list[bytes]]:
    """
    Return the trusted certificates, in DER.

    A wrong password is also reported as `Damage`: it cannot be distinguished from a modified file.
    """
    if not JAVA_KEYSTORE_MAGIC.startswith(bytes(view[:4])):
        return Damage(0, "not a Java key store: the magic does not match")
    if len(view) < _HEAD.size + _DIGEST_BYTES:
        return NeedMore(_HEAD.size + _DIGEST_BYTES - len(view))
    end = len(view) - _DIGEST_BYTES
    cursor = Cursor(view[:end])
    _, version, entries = cursor.take(_HEAD)
    if version not in {1, 2}:
        return Damage(4, f"unsupported version {version} of a Java key store")
    expected = hashlib.sha1(password.encode("utf-16-be") + _SALT + bytes(view[:end]), usedforsecurity=False)
    if not hmac.compare_digest(expected.digest(), bytes(view[end:])):
        return Damage(end, "the checksum does not match: the password is wrong, or the file was modified")
    trusted: list[bytes] = []
    try:
        for _ in range(entries):
            start = cursor.offset
            (tag,) = cursor.take(_TAG)
            cursor.skip(cursor.take(_U16)[0])
            cursor.skip(_DATE_BYTES)
            if tag == _CERTIFICATE:
                trusted.append(_certificate(cursor, version))
            elif tag == _KEY:
                cursor.skip(cursor.take(_U32)[0])
                for _ in range(cursor.take(_U32)[0]):
                    _certificate(cursor, version)
            else:
                return Damage(start, f"unknown entry tag {tag}")
    except ShortageError as shortage:
        return Damage(shortage.offset, f"the last entry is {shortage.missing} bytes too short")
    return Frame(trusted, len(view))


def _certificate(cursor: Cursor, version: int) -> bytes:
    if version > 1:
        cursor.skip(cursor.take(_U16)[0])
    return bytes(cursor.view(cursor.take(_U32)[0]))
