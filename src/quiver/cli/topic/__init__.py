"""
`quiver topic`.

=============  ===========================================================================
module         purpose
=============  ===========================================================================
`commands.py`  `quiver topic list|inspect|verify|repair|tail|produce|subscriptions`
`admin.py`     `quiver topic upload|unload|reappend|truncate|delete|seek|unsubscribe`
`objects.py`   `quiver topic rebuild-catalog`, and the objects of the other commands
`opening.py`   options for opening topics
=============  ===========================================================================
"""
