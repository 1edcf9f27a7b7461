"""
Quiver: a durable, Arrow-native buffer for telemetry and streams.

::

    import quiver

    with quiver.open("buffer/") as store:
        store.ingest(quiver.Bundle({"logs": batch}), durable=True)
        subscriber = store.register("exporter", start="earliest")
        store.seal()
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
        BundleUnavailableError,
        CapacityError,
        CorruptionError,
        DataLossError,
        DirectoryInUseError,
        InvalidBundleError,
        QuiverError,
        SettingsError,
        StoreClosedError,
        StoreFailedError,
        TransientError,
        UnknownSubscriberError,
        UnsupportedFormatError,
        UsageError,
    )
    from quiver.settings import Settings
    from quiver.store.cores.opening import open_path as open  # noqa: A004 - `quiver.open` is the name people type
    from quiver.store.reading.read import read
    from quiver.store.receipts import BundleReceipt
    from quiver.store.store import Store
    from quiver.store.subscribers.claims import BundleHandle
    from quiver.store.subscribers.records import SubscriberLag
    from quiver.store.subscribers.subscriber import Subscriber
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.bundle": "OTAP Adapter Bundle BundleRef",
            "quiver.errors": (
                "BundleUnavailableError CapacityError CorruptionError DataLossError DirectoryInUseError "
                "InvalidBundleError QuiverError SettingsError StoreClosedError StoreFailedError TransientError "
                "UnknownSubscriberError UnsupportedFormatError UsageError"
            ),
            "quiver.settings": "Settings",
            "quiver.store.reading.read": "read",
            "quiver.store.receipts": "BundleReceipt",
            "quiver.store.cores.opening": "open_path=open",
            "quiver.store.store": "Store",
            "quiver.store.subscribers.claims": "BundleHandle",
            "quiver.store.subscribers.records": "SubscriberLag",
            "quiver.store.subscribers.subscriber": "Subscriber",
        },
        renamed={
            "AtCapacity": "CapacityError",
            "BundleInvalid": "InvalidBundleError",
            "BundleUnavailable": "BundleUnavailableError",
            "Damaged": "CorruptionError",
            "DataLoss": "DataLossError",
            "DirectoryInUse": "DirectoryInUseError",
            "FormatUnsupported": "UnsupportedFormatError",
            "RetryLater": "TransientError",
            "SettingsInvalid": "SettingsError",
            "StoreClosed": "StoreClosedError",
            "StoreFailed": "StoreFailedError",
            "SubscriberUnknown": "UnknownSubscriberError",
            "WrongUse": "UsageError",
        },
    )

__all__ = [
    "OTAP",
    "Adapter",
    "Bundle",
    "BundleHandle",
    "BundleReceipt",
    "BundleRef",
    "BundleUnavailableError",
    "CapacityError",
    "CorruptionError",
    "DataLossError",
    "DirectoryInUseError",
    "InvalidBundleError",
    "QuiverError",
    "Settings",
    "SettingsError",
    "Store",
    "StoreClosedError",
    "StoreFailedError",
    "Subscriber",
    "SubscriberLag",
    "TransientError",
    "UnknownSubscriberError",
    "UnsupportedFormatError",
    "UsageError",
    "open",
    "read",
]
