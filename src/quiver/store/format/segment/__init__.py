"""
The bytes of a segment file.

================  ===================================================================
module            purpose
================  ===================================================================
`file.py`         footer, trailer and stream directory of a segment (pure)
`manifest.py`     which chunks of which streams make up each bundle (pure)
`event_times.py`  a sparse index of event times in the manifest's metadata (pure)
`ipc_table.py`    tables inside a segment: Arrow IPC files with one record batch (pure)
================  ===================================================================
"""
