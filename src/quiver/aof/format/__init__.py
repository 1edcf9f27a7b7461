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
`durability.py`       the durability snapshot: how far each segment was synced
`names.py`            names of files, made and parsed
====================  ======================================================================
"""
