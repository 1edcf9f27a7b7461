"""
The connection to QuestDB: hosts, TLS, frames out, answers in.

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`wire_loop.py`      the thread that drains a slot
`fitting.py`        frames cut to what the server takes
`session.py`        what a connection means: answers in, decisions out (pure)
`failover.py`       which host next, after which pause
`transport.py`      one WebSocket connection
`trust_store.py`    roots behind a password; `java_keystore.py` for those of Java
`java_keystore.py`  Trust stores of Java in its own format (JKS): certificates, and a checksum that needs the
                    password. Bytes only
==================  ==================================================================================================
"""
