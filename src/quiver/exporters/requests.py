"""The OTLP requests of a bundle, stored or converted from its OTAP tables; and bundles of requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from quiver.bundle import OTLP_FINGERPRINT, OTLP_SCHEMA, OTLP_SLOTS, Bundle, schema_fingerprint
from quiver.errors import InvalidBundleError
from quiver.exporters.parts import RequestProgress, unconfirmed
from quiver.otap.bundles import to_otlp

__all__ = ["bundle_of", "requests_of"]


def requests_of(bundle: Bundle) -> list[tuple[str, bytes]]:
    """
    Return signal and bytes of each non-empty request of *bundle*, in the order of its slots and rows.

    Raises:
        InvalidBundleError: it has data that OTLP cannot represent.
    """
    found: list[tuple[str, bytes]] = []
    known: set[int] = set()
    batches = bundle.batches
    for signal, slot in OTLP_SLOTS.items():
        batch = batches.get(slot)
        if batch is None:
            continue
        if schema_fingerprint(batch.schema) != OTLP_FINGERPRINT:
            raise InvalidBundleError(f"slot {slot} does not hold OTLP requests, but {batch.schema.to_string()}")
        found += [(signal, data) for data in batch.column(0).to_pylist() if data]
        known.add(slot)
    rest = [slot for slot in batches if slot not in known]
    if rest:
        signals = bundle.adapter.signals_of(rest)
        if not signals:
            raise InvalidBundleError(f"slots {', '.join(map(str, rest))} have no data that OTLP can represent")
        tables = Bundle.of_read({slot: bundle[slot] for slot in rest}, bundle.ingested_at_ns, bundle.adapter)
        made = [(signal, to_otlp(tables, signal)) for signal in signals]
        found += [one for one in made if one[1]]
    return found


def bundle_of(bundle: Bundle, requests: Sequence[tuple[str, bytes]], progress: Mapping[int, RequestProgress]) -> Bundle:
    """
    Return *bundle* with only the unconfirmed records of its *requests*; *bundle* itself if none is confirmed.

    Args:
        bundle: the bundle as it was claimed.
        requests: signal and bytes of its requests.
        progress: the number of a request → which of its records are settled.
    """
    if not any(one.confirmed for one in progress.values()):
        return bundle
    left: dict[int, list[bytes]] = {}
    for number, (signal, request) in enumerate(requests):
        rest = unconfirmed(signal, request, progress.get(number, RequestProgress()))
        if rest:
            left.setdefault(OTLP_SLOTS[signal], []).append(rest)
    batches = {slot: pa.record_batch([pa.array(data, pa.binary())], schema=OTLP_SCHEMA) for slot, data in left.items()}
    return Bundle.of_read(dict(sorted(batches.items())), bundle.ingested_at_ns, bundle.adapter)
