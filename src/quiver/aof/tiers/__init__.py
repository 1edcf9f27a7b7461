"""
The tiers of sealed segments: compressed copies on the disk, objects in a store, and hydration back to files.

====================  ==========================================================
module                purpose
====================  ==========================================================
`tier_manager.py`     moves the segments of one log between its tiers
`uploads.py`          uploads segments and deletes objects
`hydration.py`        restores the files of segments, for readers
`copies.py`           packed files and objects, written completely and verified
`placement.py`        where the copies of each segment are, by manifest and disk
`object_listing.py`   the objects of one log
`packed.py`           packing a segment, and reading a packed one
`hydration_queue.py`  segments to hydrate in the background
`state.py`            the tier state that the manifest log describes (pure)
`snapshot.py`         sizes, queues and counts of the tiers
====================  ==========================================================
"""
