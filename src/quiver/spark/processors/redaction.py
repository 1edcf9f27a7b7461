"""
Redact values in Arrow batches, at every level of nesting. Pure.

A struct with the fields of a typed value is one value. Keys decide about the values of maps, and inside JSON about the
values of objects. Patterns are RE2, which takes linear time for any text. Bytes are searched as text if they are valid
UTF-8, or else byte by byte. JSON has no bytes, so base64 strings in it are searched as bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap import TYPED_VALUE
from quiver.store.segment.type_promotion import is_any_list

__all__ = ["Redaction", "text_names"]

_TYPED_NAMES = tuple(field.name for field in TYPED_VALUE)
_TEXT, _JSON, _BYTES = "string_value", "json_value", "bytes_value"


class Redaction:
    """
    Replaces values of matching keys, and matching parts of strings. Can be pickled.

    Args:
        keys: patterns of keys whose complete values are replaced.
        value_patterns: patterns of parts to replace in strings.
        replacement: the text that replaces them.
        columns: string columns to search, and fields of that name in structs, such as the names of a span's events.
            Attributes and bodies are always searched.
    """

    def __init__(
        self, keys: Sequence[str], value_patterns: Sequence[str], *, replacement: str, columns: Sequence[str] = ()
    ) -> None:
        self._keys = "|".join(f"(?:{pattern})" for pattern in keys)
        self._value_patterns = tuple(value_patterns)
        self._replacement = replacement
        self._columns = frozenset(columns)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch, redacted, with an unchanged schema."""
        for batch in batches:
            yield self.batch(batch)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return *batch*, redacted."""
        columns = self._fields(batch.schema, batch.columns)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch

    def _fields(self, fields: Iterable[pa.Field], arrays: Iterable[pa.Array]) -> list[pa.Array]:
        return [
            self._plain(array) if field.name in self._columns and _is_plain(field.type) else self._inside(array)
            for field, array in zip(fields, arrays, strict=True)
        ]

    def _inside(self, array: pa.Array) -> pa.Array:
        """Return *array* with every typed value in it redacted, at any depth."""
        kind = array.type
        if pa.types.is_map(kind):
            return self._map(array)
        if pa.types.is_struct(kind):
            if tuple(field.name for field in kind) == _TYPED_NAMES:
                return self._typed(array)
            # Flattened, because the fields of a null struct may have any value.
            children = self._fields(kind, array.flatten())
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
        if is_any_list(kind) and _holds_values(kind.value_type):
            return self._list(array)
        return array

    def _list(self, array: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])
        made = pa.ListArray.from_arrays(offsets, self._inside(array.flatten()), mask=array.is_null())
        return made.cast(array.type)

    def _map(self, array: pa.Array) -> pa.Array:
        first, last = (array.offsets[at].as_py() for at in (0, len(array)))
        keys = array.keys.slice(first, last - first)
        items = array.items.slice(first, last - first)
        kind = array.type
        if pa.types.is_struct(kind.item_type):
            items = self._inside(items)
        elif _is_plain(kind.item_type):
            items = self._plain(items)
        if self._keys and _is_text(kind.key_type):
            hidden = pc.and_(pc.match_substring_regex(keys, self._keys), pc.is_valid(items))
            items = self._hide(items, hidden)
        offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())

    def _hide(self, items: pa.Array, hidden: pa.Array) -> pa.Array:
        """Return *items* with the *hidden* ones replaced, or null if the type is not a string."""
        kind = items.type
        if _is_text(kind):
            return pc.if_else(hidden, pa.scalar(self._replacement, kind), items)
        if _is_blob(kind):
            return pc.if_else(hidden, pa.scalar(self._replacement.encode(), kind), items)
        if pa.types.is_struct(kind) and _TEXT in [field.name for field in kind]:
            children = []
            for field, child in zip(kind, items.flatten(), strict=True):
                instead = self._replacement if field.name == _TEXT else None
                children.append(pc.if_else(hidden, pa.scalar(instead, field.type), child))
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=items.is_null())
        return pc.if_else(hidden, pa.scalar(None, kind), items)

    def _typed(self, array: pa.Array) -> pa.Array:
        kind = array.type
        change: dict[str, Callable[[pa.Array], pa.Array]] = {
            _TEXT: self._text, _JSON: self._json, _BYTES: self._blob
        }  # fmt: skip
        children = [
            change[field.name](child) if field.name in change else child
            for field, child in zip(kind, array.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())

    def _text(self, array: pa.Array) -> pa.Array:
        for pattern in self._value_patterns:
            array = pc.replace_substring_regex(array, pattern, self._replacement)
        return array

    def _plain(self, array: pa.Array) -> pa.Array:
        return self._text(array) if _is_text(array.type) else self._blob(array)

    def _blob(self, array: pa.Array) -> pa.Array:
        """Return bytes with the matching parts replaced."""
        if not self._value_patterns or array.null_count == len(array):
            return array
        try:
            return self._text(array.cast(pa.large_string())).cast(array.type)
        except pa.ArrowInvalid:
            # A pattern matches characters in valid UTF-8, and bytes in anything else.
            as_text = pa.array([blob is not None and _is_utf8(blob) for blob in array.to_pylist()])
            texts = pc.if_else(as_text, array, pa.scalar(None, array.type)).cast(pa.large_string())
            return pc.if_else(as_text, self._text(texts).cast(array.type), self._text(array))

    def _look_into_base64(self, texts: dict[str, str]) -> None:
        """Add to *texts* (text → replacement) those that are base64 of bytes with matching parts."""
        blobs = {text: blob for text in texts if (blob := _from_base64(text)) is not None}
        if not blobs:
            return
        redacted = self._blob(pa.array(list(blobs.values()), pa.large_binary())).to_pylist()
        for (text, before), after in zip(blobs.items(), redacted, strict=True):
            if after != before:
                texts[text] = base64.b64encode(after).decode()

    def _json(self, array: pa.Array) -> pa.Array:
        if array.null_count == len(array):
            return array
        parsed = [None if text is None else _parsed(text) for text in array.to_pylist()]
        texts: dict[str, str] = {}
        keys: dict[str, bool] = {}
        for one in parsed:
            _collect(one, texts, keys)
        # All together: matching a pattern on a column is much faster than on single strings.
        if texts:
            self._look_into_base64(texts)
            texts = dict(zip(texts, self._text(pa.array(list(texts.values()))).to_pylist(), strict=True))
        if keys and self._keys:
            matches = pc.match_substring_regex(pa.array(list(keys)), self._keys).to_pylist()
            keys = dict(zip(keys, matches, strict=True))
        # A plain string stays a string; values read from JSON are in brackets.
        made = [
            _dumps(self._rewritten(one[0], texts, keys)) if isinstance(one, list) else texts.get(one or "", one)
            for one in parsed
        ]
        return pa.array(made, array.type)

    def _rewritten(self, value: Any, texts: dict[str, str], keys: dict[str, bool]) -> Any:
        if isinstance(value, str):
            return texts[value]
        if isinstance(value, list):
            return [self._rewritten(one, texts, keys) for one in value]
        if isinstance(value, dict):
            return {
                key: self._replacement if keys[key] else self._rewritten(one, texts, keys) for key, one in value.items()
            }
        return value


def text_names(fields: Iterable[pa.Field]) -> set[str]:
    """Return the valid names for *columns* in a redaction of *fields*: columns, and fields of structs."""
    found: set[str] = set()
    for field in fields:
        kind = field.type
        while is_any_list(kind):
            kind = kind.value_type
        if _is_plain(kind) and kind == field.type:
            found.add(field.name)
        elif pa.types.is_struct(kind) and tuple(one.name for one in kind) != _TYPED_NAMES:
            found |= text_names(kind)
    return found


def _collect(value: Any, texts: dict[str, str], keys: dict[str, bool]) -> None:
    if isinstance(value, str):
        texts[value] = value
    elif isinstance(value, list):
        for one in value:
            _collect(one, texts, keys)
    elif isinstance(value, dict):
        for key, one in value.items():
            keys[key] = False
            _collect(one, texts, keys)


def _parsed(text: str) -> list[Any] | str:
    try:
        return [json.loads(text)]
    except ValueError:
        return text  # an unrelated column of the same name


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_utf8(blob: bytes) -> bool:
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return True


def _from_base64(text: str) -> bytes | None:
    if not text or len(text) % 4:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None  # a plain string, as most are


def _is_plain(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_blob(kind)


def _is_blob(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_values(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind) or is_any_list(kind))
