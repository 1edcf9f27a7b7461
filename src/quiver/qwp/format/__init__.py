"""
The formats of all files in a slot. No I/O.

===================  =======================================================================
file                 purpose
===================  =======================================================================
`names.py`           file names: building and parsing
`segment.py`         segment header and frame envelope (pure)
`watermark.py`       the watermark: the highest confirmed frame (pure)
`newer.py`           manifest, watermark and symbol file of newer clients, read only (pure)
`dead_letters.py`    dropped frames (pure)
`describe.py`        descriptions of these files (pure)
===================  =======================================================================
"""
