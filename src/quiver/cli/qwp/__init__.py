"""
`quiver qwp`.

=================  ===================================================================================================
module             purpose
=================  ===================================================================================================
`commands.py`      the other logs
`dead_letters.py`  `quiver qwp dead-letters SF_DIR SLOT list|show|resend|export|clear`
`slots.py`         What the commands of `quiver qwp` share: slots by name, what is in one, and a word while no server
                   answers
=================  ===================================================================================================
"""
