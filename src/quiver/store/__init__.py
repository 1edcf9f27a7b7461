"""
Quiver itself: a durable buffer of Arrow bundles, in the order data flows.

===================  ==============================================================================
file or room         purpose
===================  ==============================================================================
`format/`            the bytes of every file kind; no I/O
`encode.py`          a bundle's slots as bytes, made once, for the log and for the segment
`wal/`               append, sync, rotate, scan
`segment/`           the open segment in memory, the sealed file, reading it
`sealing.py`         from open to sealed: when, by whom, and again when the disk was full
`catalog.py`         the sealed segments there are
`subscribers/`       who has resolved what, in memory and in progress files
`retention.py`       which segments may go                                                     (pure)
`recovery.py`        what happens at open, in order
`background.py`      the two threads
`receipts.py`        what the store's calls return
`store.py`           `Store`: the flow in one place
`opening.py`         `quiver.open`: lock, directories, store
`read.py`            `quiver.read`: a directory read beside a live writer
`check.py`           every file checked to its last byte, and against the others
===================  ==============================================================================
"""
