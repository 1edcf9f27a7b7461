"""
`quiver qwp`.

=================  ===================================================================================================
module             purpose
=================  ===================================================================================================
`commands.py`      `quiver qwp list`, `inspect`, `drain`, `clear-failed` and `tail`
`dead_letters.py`  `quiver qwp dead-letters SF_DIR SLOT list|show|replay|export|clear`
`slots.py`         helpers that these commands share: finding slots, reports, messages while no server answers
=================  ===================================================================================================
"""
