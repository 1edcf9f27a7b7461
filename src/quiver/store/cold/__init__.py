"""
The object tier of a store: sealed segments are copied to an object store and read from there.

====================  ====================================================================
module                purpose
====================  ====================================================================
`opening.py`          the parts of the tier that are needed before the first segment is read
`location.py`         the location of the objects, without secrets; opens the tier on demand
`register.py`         the list of segments in the tier, in memory and on disk
`tier.py`             uploads and verifies sealed segments, removes finished ones
`rebuild.py`          rebuilds a damaged list from the objects
`restore.py`          restores a store from its objects, on another disk
`local_retention.py`  removes the local files of segments that the tier has
`files.py`            a file system that includes segments that are only in the tier
====================  ====================================================================
"""
