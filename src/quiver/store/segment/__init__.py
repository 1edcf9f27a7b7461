"""
Segments: many bundles in one immutable file, a stream of batches per slot and schema.

While a segment is open its bundles stay in memory as the Arrow messages the log already wrote. Sealing gathers
those messages, as they are, into one Arrow IPC file per stream, and puts directory, manifest and checksum behind
them. A reader maps the file and hands out batches that point into it.

::

    EncodedSlot ─▶ OpenSegment ─ seal ─▶ SealedSegment ─ write_segment ─▶ <number>.qseg ─▶ SegmentReader
                   (messages)            (IPC files)     temp, sync, rename               (mapped, checked)

==================  ============================================================================
file                purpose
==================  ============================================================================
`ipc_file.py`       an Arrow IPC file around messages that exist already                  (pure)
`schemas.py`        what of a schema Arrow IPC can carry; where its dictionaries sit      (pure)
`dictionaries.py`   dictionary batches → messages that share one dictionary, exactly      (pure)
`accumulator.py`    bundles → streams, in memory; seal
`info.py`           what is known of a sealed segment without reading its streams
`writer.py`         a sealed segment → a durable file
`reader.py`         a file → bundles, without copying, never without its checksum
==================  ============================================================================
"""
