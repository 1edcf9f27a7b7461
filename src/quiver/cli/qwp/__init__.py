"""
`quiver sf`.

=================  ===================================================================================================
module             purpose
=================  ===================================================================================================
`commands.py`      the other logs
`dead_letters.py`  `quiver sf dead-letters SF_DIR SLOT list|show|resend|export|clear`
`slots.py`         What the commands of `quiver sf` share: slots by name, what is in one, and a word while no server
                   answers
=================  ===================================================================================================
"""
