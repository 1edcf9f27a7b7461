"""Describe the binary objects of a fleet. Called by `describe`, and bytes only, too."""

from __future__ import annotations

from quiver.primitives.file_kinds import LIST_BYTES_MAX, FileKind
from quiver.primitives.findings import Description
from quiver.store.format.fleet.acks import AckedNode, decode_acks
from quiver.store.format.fleet.offsets import decode_offsets

__all__ = ["FLEET_KINDS"]


def _row(node: AckedNode) -> dict[str, object]:
    segment, checksum = node.segment or (None, None)
    crc32 = None if checksum is None else f"{checksum:08x}"
    return {"node": node.identity, "position": node.position, "segment": segment, "crc32": crc32}


def _describe_acks(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    found = to.accept(decode_acks(view))
    if found is None:
        return
    to.fields = {"shard": found.shard, "epoch": found.epoch, "nodes": len(found.nodes)}
    to.tables["positions"] = [_row(node) for node in found.nodes[:rows_max]]


def _describe_batch(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    found = to.accept(decode_offsets(view))
    if found is None:
        return
    objects = [one for node in found.nodes for one in node.objects]
    to.fields = {
        "epoch": found.epoch,
        "generation": found.generation,
        "nodes": len(found.nodes),
        "objects": len(objects),
        "gone": sum(one.is_gone for one in objects),
        "size_bytes": sum(one.size_bytes for one in objects),
    }
    to.tables["positions"] = [{**_row(node.after), "objects": len(node.objects)} for node in found.nodes[:rows_max]]


FLEET_KINDS: dict[str, FileKind] = {
    "fleet positions": FileKind(_describe_acks, LIST_BYTES_MAX),
    "fleet batch": FileKind(_describe_batch, LIST_BYTES_MAX),
}
