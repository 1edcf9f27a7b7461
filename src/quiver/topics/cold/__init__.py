"""
The object tier of topics: sealed log files become objects, and are read from there.

====================  ============================================================================================
module                purpose
====================  ============================================================================================
`port.py`             the interface of the tier
`pieces.py`           the interface of its readers
`opening.py`          opening the tier from settings
`tier.py`             the tier: ownership, uploads and deletion in two threads
`uploader.py`         from log to objects, step by step
`source.py`           a range of a topic's log on its way into one object
`blocks.py`           packed objects: frames compressed block by block
`catalog.py`          the metadata store's record of a topic's objects
`catalog_rebuild.py`  rebuilding the catalog from the objects alone
`spans.py`            a summary of each object in forty bytes
`reader.py`           objects read from any offset
`superseded.py`       local files superseded by another owner
`deleter.py`          deleting local files and objects by retention
`cursor_mirror.py`    subscriptions mirrored to the metadata store
====================  ============================================================================================
"""
