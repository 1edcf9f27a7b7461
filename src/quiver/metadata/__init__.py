"""
Small values that several processes must agree on: an ordered key-value store with transactions, independent of logs.

================  ===================================================================================
module            purpose
================  ===================================================================================
`port.py`         `MetadataStore`: get, range by prefix, and conditional commits
`sqlite.py`       in one file, safe across processes of one machine; the default
`etcd.py`         in an etcd, for several machines, through its JSON gateway
`memory.py`       in a dictionary
`location.py`     the location, from a URL or a mapping; secrets are never printed
`ownership.py`    one owner at a time, with an epoch, on any of them
`opening.py`      `open_metadata`: from a location to a store
================  ===================================================================================

`quiver.testing` has `MetadataContract`, which each of them fulfils, and `FaultMetadata`, which makes one unavailable.
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.metadata.location import MetadataLocation
    from quiver.metadata.opening import open_metadata
    from quiver.metadata.ownership import Ownership, Watch, acquire
    from quiver.metadata.port import Entry, MetadataStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.metadata.location": "MetadataLocation",
            "quiver.metadata.opening": "open_metadata",
            "quiver.metadata.ownership": "Ownership Watch acquire",
            "quiver.metadata.port": "Entry MetadataStore",
        },
    )

__all__ = ["Entry", "MetadataLocation", "MetadataStore", "Ownership", "Watch", "acquire", "open_metadata"]
