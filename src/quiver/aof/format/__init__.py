"""
The bytes of an AOF2 log: pure functions from values to bytes, and from bytes to answers.

====================  ======================================================================
file                  purpose
====================  ======================================================================
`segment_file.py`     header and footer of a segment file
`record.py`           one record entry, its id, and the scan from record to record
`sealed_pointer.py`   `current.sealed`: the newest sealed segment
`manifest_chunk.py`   a chunk of the MAN1 manifest log: header, checksum, its records
`manifest_record.py`  one record of it, and the payload of each kind
`tier_entry.py`       the copies of a segment, as stored in such a record
`warm_file.py`        a packed segment: its frames, and their table
`durability.py`       the durability snapshot: how far each segment was synced
`sparse_index.py`     the sparse index of a sealed segment
`status.py`           the status of a log's writer
`sink_batch.py`       the batches of Spark sinks, and the progress of their import
`names.py`            names of files, made and parsed
`describe.py`         human-readable descriptions of these files
====================  ======================================================================
"""
