"""
QWP over WebSocket: rows from QuestDB clients, stored before they are confirmed.

===============  ===============================================================
module           purpose
===============  ===============================================================
`settings.py`    address, sizes, acknowledgement, window
`replay.py`      detection of tables that a client sends again
`ledger.py`      the file of tables that may be sent again
`intake.py`      the handling of messages: decode, deduplicate, store
`connection.py`  one WebSocket connection: messages in, answers out
`receiver.py`    the listening QWP receiver
===============  ===============================================================
"""
