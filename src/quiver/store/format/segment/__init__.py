"""
The bytes of a segment file. Pure.

================  ====================================================================================================
module            purpose
================  ====================================================================================================
`file.py`         footer, trailer and stream directory of a segment
`manifest.py`     which chunks of which streams make up each bundle
`event_times.py`  When things happened, beside when they were ingested: a sparse index in the manifest's metadata.
                  Bytes only
`ipc_table.py`    A table of ours inside a segment: one Arrow IPC file with exactly one record batch. Bytes only
================  ====================================================================================================
"""
