"""
Segments: many bundles in one immutable file, a stream of batches per slot and schema.

While a segment is open its bundles stay in memory as the Arrow messages the log already wrote. Sealing gathers
those messages, as they are, into one Arrow IPC file per stream, and puts directory, manifest and checksum behind
them. A reader maps the file and hands out batches that point into it.

::

    EncodedSlot ─▶ OpenSegment ─ seal ─▶ SealedSegment ─ write_segment ─▶ <number>.qseg ─▶ SegmentReader
                   (messages)            (IPC files)     temp, sync, rename               (mapped, checked)

===================  =======================================================================
module               purpose
===================  =======================================================================
`ipc_file.py`        an Arrow IPC file around messages that exist already (pure)
`schemas.py`         what of a schema Arrow IPC can carry; where its dictionaries sit (pure)
`dictionaries.py`    dictionary batches → messages that share one dictionary, exactly (pure)
`event_time.py`      which column tells when something happened, and its range in each chunk
`accumulator.py`     bundles → streams, in memory; seal
`log_backed.py`      large messages that stay in the log until their segment is written
`compression.py`     a stream's IPC file with compressed bodies
`info.py`            what is known of a sealed segment without reading its streams
`writer.py`          a sealed segment → a durable file
`listing.py`         which there are, beside a live writer
`tail.py`            the end of a file → what the store keeps in mind of it
`reader.py`          a file → bundles, without copying, never without its checksum
`in_order.py`        a stream's chunks one behind the other, for less than by the table
`verified.py`        which files this process found sound
`type_promotion.py`  schemas that drift → one that holds them all (pure)
`cast.py`            a batch under another schema: order, types, missing columns (pure)
===================  =======================================================================
"""
