"""
The bytes of every file in a slot. No I/O.

===================  =======================================================================
file                 purpose
===================  =======================================================================
`names.py`           the names of a slot's files, made and parsed
`segment.py`         segment header and frame envelope
`watermark.py`       how far the server has confirmed
`newer.py`           manifest, watermark and symbol file of newer clients, read only
`dead_letters.py`    frames that a policy gave up
`describe.py`        segments, watermarks and dead letters, told to a person
===================  =======================================================================
"""
