"""
Quiver: a durable, Arrow-native buffer for telemetry and streams.

::

    import quiver

    with quiver.open("buffer/") as store:
        store.ingest(quiver.Bundle({"logs": batch}), durable=True)
        subscriber = store.register("exporter", start="earliest")
        store.flush()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            export(handle.bundle)
            handle.ack()

`open` creates or recovers a store, or with ``cores`` one for each core; `read` looks at one beside its writer. Spark is
in `quiver.spark`, OTLP in `quiver.otap` and `quiver.receivers`; both need their extras.
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
    from quiver.errors import (
        AtCapacity,
        BundleInvalid,
        BundleUnavailable,
        Damaged,
        DataLoss,
        DirectoryInUse,
        FormatUnsupported,
        QuiverError,
        RetryLater,
        SettingsInvalid,
        StoreClosed,
        StoreFailed,
        SubscriberUnknown,
        WrongUse,
    )
    from quiver.settings import Settings
    from quiver.store.cores.opening import open_path as open  # noqa: A004 - `quiver.open` is the name people type
    from quiver.store.reading.read import read
    from quiver.store.receipts import BundleReceipt
    from quiver.store.store import Store
    from quiver.store.subscribers.handle import BundleHandle, Subscriber
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.bundle": "OTAP Adapter Bundle BundleRef",
            "quiver.errors": (
                "AtCapacity BundleInvalid BundleUnavailable Damaged DataLoss DirectoryInUse FormatUnsupported "
                "QuiverError RetryLater SettingsInvalid StoreClosed StoreFailed SubscriberUnknown WrongUse"
            ),
            "quiver.settings": "Settings",
            "quiver.store.reading.read": "read",
            "quiver.store.receipts": "BundleReceipt",
            "quiver.store.cores.opening": "open_path=open",
            "quiver.store.store": "Store",
            "quiver.store.subscribers.handle": "BundleHandle Subscriber",
        },
    )

__all__ = [
    "OTAP",
    "Adapter",
    "AtCapacity",
    "Bundle",
    "BundleHandle",
    "BundleInvalid",
    "BundleReceipt",
    "BundleRef",
    "BundleUnavailable",
    "Damaged",
    "DataLoss",
    "DirectoryInUse",
    "FormatUnsupported",
    "QuiverError",
    "RetryLater",
    "Settings",
    "SettingsInvalid",
    "Store",
    "StoreClosed",
    "StoreFailed",
    "Subscriber",
    "SubscriberUnknown",
    "WrongUse",
    "open",
    "read",
]
