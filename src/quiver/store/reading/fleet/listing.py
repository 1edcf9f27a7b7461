"""The objects of a folder with one sub-folder for each shard, listed by several requests at once if there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.store.format.fleet.names import SHARDS

__all__ = ["REQUESTS_AT_ONCE", "in_parallel", "list_shards"]

REQUESTS_AT_ONCE = 32
_FIRST_KEYS = 1000
"""One request returns as many keys; a fleet with fewer needs no other request."""

T = TypeVar("T")
R = TypeVar("R")


def list_shards(tier: ObjectTier, folder: str) -> Iterator[ObjectInfo]:
    """
    Yield the objects of *folder*, in the order of their keys. Its sub-folders are the shards of a fleet.

    Objects that are written or deleted meanwhile may or may not be included.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: the objects cannot be listed.
    """
    first = list(islice(tier.list_below(folder), _FIRST_KEYS))
    yield from first
    if len(first) < _FIRST_KEYS:
        return
    last = first[-1].key
    shard = last.removeprefix(f"{folder}/").partition("/")[0]
    rest = [one for one in SHARDS if one >= shard]

    def list_one(one: str) -> list[ObjectInfo]:
        return list(tier.list_below(f"{folder}/{one}", after=last if one == shard else ""))

    for found in in_parallel(list_one, rest):
        yield from found


def in_parallel(call: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
    """Yield the result of *call* for each of *values*, in their order. The first error is raised."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="quiver-fleet") as pool:
        try:
            yield from pool.map(call, values)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
