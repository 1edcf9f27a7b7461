"""
`quiver aof`.

=============  ================================================================
module         purpose
=============  ================================================================
`commands.py`  `quiver aof dump|inspect|verify|tail|evict|hydrate`
`admin.py`     `quiver aof seal|flush|upload|segments|manifest`
`restore.py`   `quiver aof restore`
`logs.py`      selection of the logs of a command
=============  ================================================================
"""
