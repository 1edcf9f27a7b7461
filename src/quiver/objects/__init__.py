"""
The object tier: whole, immutable objects by name, on a disk, in memory or in a bucket. It knows no log.

::

    open_objects("s3://bucket/prefix", options) ─▶ location.py ─▶ directory.py │ memory.py │ remote.py
                                                                        └──▶ retrying.py ──▶ the log that uses it

=================  ===================================================================================
file               purpose
=================  ===================================================================================
`port.py`          `ObjectTier`: what a log may ask, and what each call promises; which keys are lawful
`location.py`      where objects are, from a URL or a mapping, with secrets that nobody prints
`directory.py`     objects as files of the `FileSystem` port: synced before they have their name
`memory.py`        objects in a dictionary
`remote.py`        S3, Google Cloud Storage and Azure through obstore
`retrying.py`      any of them, tried again with capped backoff
`opening.py`       `open_objects`: location → tier, with its credentials proved
=================  ===================================================================================

`quiver.testing` has `ObjectTierContract`, which every tier keeps, and `FaultObjects`, which breaks one call in any way.
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
