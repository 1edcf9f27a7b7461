"""
Small facts that several processes must agree on: an ordered key-value store with transactions. It knows no log.

================  ==================================================================================
file              purpose
================  ==================================================================================
`port.py`         `MetadataStore`: get, range by prefix, and a commit that happens only if expected
`sqlite.py`       in one file, safe across processes of one machine; the default
`etcd.py`         in an etcd, for several machines, through its JSON gateway
`memory.py`       in a dictionary
`location.py`     where it is, from a URL or a mapping, with secrets that nobody prints
`ownership.py`    one owner at a time, with an epoch, on any of them
`opening.py`      `open_metadata`: location → store
================  ==================================================================================

`quiver.testing` has `MetadataContract`, which each of them keeps, and `FaultMetadata`, which takes one away.
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
