"""
QWP over WebSocket: rows from QuestDB clients, stored before they are confirmed.

===============  ===============================================================
module           purpose
===============  ===============================================================
`settings.py`    where to listen for QWP, sizes, ack, window
`replay.py`      what a client sends again, told from what another one says, too
`ledger.py`      the file of what may be sent again
`intake.py`      messages of QWP connections: decode, recognise, store
`connection.py`  one WebSocket: messages in, answers out
`receiver.py`    QWP, listening
===============  ===============================================================
"""
