"""
Output of commands, and parsing of their arguments.

=============  =============================================================
module         purpose
=============  =============================================================
`output.py`    tables and JSON
`progress.py`  a progress line on the terminal during long operations
`instants.py`  parsing of times
`paths.py`     path arguments, which must not be empty
=============  =============================================================
"""
