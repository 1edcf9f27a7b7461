"""
`quiver topic`.

=============  =======================================================================================================
module         purpose
=============  =======================================================================================================
`commands.py`  the other logs
`objects.py`   the other logs
`admin.py`     `quiver topic upload|unload|reappend|truncate|delete|seek|unsubscribe`: done here, or by the process
               that has the topics open
`opening.py`   The options of every `quiver topic` command that opens the topics for itself, and the store that they
               describe
=============  =======================================================================================================
"""
