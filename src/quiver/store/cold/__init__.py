"""
The object tier of a store: sealed segments are copied to an object store and read from there.

====================  ====================================================================
module                purpose
====================  ====================================================================
`opening.py`          what is needed of it before the first segment is read
`location.py`         where the objects are, without secrets; the tier, opened when needed
`register.py`         the list of what it has: in memory, on disk
`tier.py`             sealed segments are sent and verified, finished ones removed
`rebuild.py`          its list, damaged, made anew from the objects
`restore.py`          a store made again from its objects, on another disk
`local_retention.py`  what it has leaves the disk
`files.py`            a file system that shows what only the tier has
====================  ====================================================================
"""
