"""
A bundle's OTLP requests: those it holds as they came, and those made of its OTAP tables. Pure.
"""

from __future__ import annotations

from quiver.bundle import OTLP_FINGERPRINT, OTLP_SLOTS, Bundle, schema_fingerprint
from quiver.errors import BundleInvalid
from quiver.otap.bundles import to_otlp

__all__ = ["requests_of"]


def requests_of(bundle: Bundle) -> list[tuple[str, bytes]]:
    """
    Return signal and bytes of each request of *bundle*, in the order of its slots and rows; empty ones left out.

    Raises:
        BundleInvalid: it holds something that no OTLP request can say.
    """
    found: list[tuple[str, bytes]] = []
    known: set[int] = set()
    for signal, slot in OTLP_SLOTS.items():
        if slot not in bundle:
            continue
        batch = bundle[slot]
        if schema_fingerprint(batch.schema) != OTLP_FINGERPRINT:
            raise BundleInvalid(f"slot {slot} does not hold OTLP requests, but {batch.schema.to_string()}")
        found += [(signal, data) for data in batch.column(0).to_pylist() if data]
        known.add(slot)
    rest = [slot for slot in bundle.slots if slot not in known]
    if rest:
        signals = bundle.adapter.signals_of(rest)
        if not signals:
            raise BundleInvalid(f"slots {', '.join(map(str, rest))} hold nothing that OTLP can say")
        tables = Bundle.of_read({slot: bundle[slot] for slot in rest}, bundle.ingested_at_ns, bundle.adapter)
        made = [(signal, to_otlp(tables, signal)) for signal in signals]
        found += [one for one in made if one[1]]
    return found
