"""
`quiver aof`.

=============  ====================================================================================================
module         purpose
=============  ====================================================================================================
`commands.py`  the other logs
`admin.py`     `quiver aof seal|flush|upload|segments|manifest`: what is done to a log while no program has it open
`logs.py`      Which logs a command of `quiver aof` is about
`restore.py`   `quiver aof restore`: logs made again from their objects
=============  ====================================================================================================
"""
