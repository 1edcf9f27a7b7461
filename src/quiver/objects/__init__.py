"""
Object stores: immutable objects by name, on a disk, in memory or in a bucket; independent of logs.

::

    open_objects("s3://bucket/prefix", options) ─▶ location.py ─▶ directory.py │ memory.py │ remote.py
                                                                        └──▶ retrying.py ──▶ the log that uses it

=================  ===================================================================================
module             purpose
=================  ===================================================================================
`port.py`          `ObjectTier`: the operations and their guarantees; valid keys
`location.py`      the location, from a URL or a mapping; secrets are never printed
`directory.py`     objects as files of the `FileSystem` port, synced before they are renamed
`memory.py`        objects in a dictionary
`remote.py`        S3, Google Cloud Storage and Azure through obstore
`digest.py`        the etag of an upload, computed from its bytes
`retrying.py`      any of them, with retries and capped backoff
`opening.py`       `open_objects`: from a location to a tier with verified credentials
=================  ===================================================================================

`quiver.testing` has `ObjectTierContract`, which every tier fulfils, and `FaultObjects`, which makes calls fail.
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.objects.location import ObjectLocation
    from quiver.objects.opening import open_objects
    from quiver.objects.port import ObjectInfo, ObjectTier
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.objects.location": "ObjectLocation",
            "quiver.objects.opening": "open_objects",
            "quiver.objects.port": "ObjectInfo ObjectTier",
        },
    )

__all__ = ["ObjectInfo", "ObjectLocation", "ObjectTier", "open_objects"]
