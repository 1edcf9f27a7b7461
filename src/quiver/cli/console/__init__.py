"""
What commands print, and how they parse what people type.

=============  =======================================================================================================
module         purpose
=============  =======================================================================================================
`output.py`    tables for people, JSON for programs; a word while something takes long
`progress.py`  tables for people, JSON for programs; a word while something takes long
`instants.py`  times as people type them
`paths.py`     Paths on the command line. An empty one is refused: typer would take it for the directory that the
               program runs in
=============  =======================================================================================================
"""
