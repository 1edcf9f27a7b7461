"""
The connection to QuestDB: hosts, TLS, frames out, answers in.

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`wire_loop.py`      the thread that drains a slot
`fitting.py`        splitting of frames that are too large for the server
`session.py`        the protocol state: answers in, decisions out (pure)
`failover.py`       the choice of the next host and the pause before it
`transport.py`      one WebSocket connection
`trust_store.py`    trust stores with a password
`java_keystore.py`  decoding of Java key stores (JKS) (pure)
==================  ==================================================================================================
"""
