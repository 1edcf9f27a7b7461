"""
The bytes of an AOF2 log: pure functions, values in and bytes out, bytes in and answers out.

====================  ======================================================================
file                  purpose
====================  ======================================================================
`segment_file.py`     header and footer of a segment file
`record.py`           one record entry, its id, and the scan from record to record
`sealed_pointer.py`   `current.sealed`: the newest sealed segment
`manifest_chunk.py`   a chunk of the MAN1 manifest log: header, checksum, its records
`manifest_record.py`  one record of it, and the payload of each kind
`tier_entry.py`       what such a record says of a segment's copies
`warm_file.py`        a packed segment: its frames, and the table of them
`durability.py`       the durability snapshot: how far each segment was synced
`sparse_index.py`     where to begin to look in a sealed segment
`sink_batch.py`       what Spark sinks commit, and how far it is appended
`names.py`            names of files, made and parsed
`describe.py`         any of these files told to people
====================  ======================================================================
"""
