"""
Segments: many bundles in one immutable file, with a stream of batches per slot and schema.

While a segment is open, its bundles stay in memory as the Arrow messages that the log has already written. Sealing
gathers these messages, unchanged, into one Arrow IPC file per stream, and appends directory, manifest and checksum. A
reader maps the file and returns batches that point into it.

::

    EncodedSlot ─▶ OpenSegment ─ seal ─▶ SealedSegment ─ write_segment ─▶ <number>.qseg ─▶ SegmentReader
                   (messages)            (IPC files)     temp, sync, rename               (mapped, checked)

===================  ===================================================================================
module               purpose
===================  ===================================================================================
`ipc_file.py`        an Arrow IPC file around existing messages (pure)
`schemas.py`         whether Arrow IPC can carry a schema; where its dictionaries are (pure)
`dictionaries.py`    dictionary batches → messages that share one dictionary, exactly (pure)
`event_time.py`      the column of event times of a schema, and the range of each chunk (pure)
`stream_events.py`   the event times and items of a stream, also of OTLP requests (pure)
`accumulator.py`     bundles → streams, in memory; seal
`log_backed.py`      large messages that stay in the log until their segment is written
`pieced.py`          large messages of batches that cannot change, without a copy of their buffers
`compression.py`     the IPC file of a stream with compressed bodies (pure)
`info.py`            what is known about a sealed segment without reading its streams
`writer.py`          a sealed segment → a durable file
`listing.py`         the segments of a directory, next to a live writer
`tail.py`            the end of a segment file → what the store keeps in memory
`reader.py`          a segment file → bundles, without copying, never before its checksum is verified
`in_order.py`        a stream's chunks in sequence, cheaper than by lookup
`verified.py`        the files that this process has verified
`type_promotion.py`  schemas that drift → one schema that fits all of them (pure)
`cast.py`            a batch under another schema: order, types, missing columns (pure)
===================  ===================================================================================
"""
