"""
What becomes of sealed segments: compressed copies on the disk, objects in a store, and back again.

====================  ==========================================================
module                purpose
====================  ==========================================================
`tier_manager.py`     moves the segments of one log between its tiers
`uploads.py`          uploads segments, and deletes objects
`hydration.py`        brings segments back to their files, for readers
`copies.py`           packed files and objects, each made whole and verified
`placement.py`        where the copies of each segment are, by manifest and disk
`object_listing.py`   what the object store has of one log
`packed.py`           packing a segment, and reading it packed
`hydration_queue.py`  segments that somebody wants back and does not wait for
`state.py`            what the records of the manifest log add up to (pure)
`snapshot.py`         how much lies where, and what was done
====================  ==========================================================
"""
