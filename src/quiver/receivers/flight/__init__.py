"""
Arrow Flight: stores for clients in other processes and languages.

=============  =====================================================================
module         purpose
=============  =====================================================================
`settings.py`  address, sizes, acknowledgement, security
`messages.py`  the protobuf messages (pure)
`command.py`   tickets and descriptors: JSON commands (pure)
`batches.py`   record batches as messages, with dictionaries and limits
`sources.py`   the stores that are offered, by name
`reading.py`   the messages of a stream that a client reads
`status.py`    gRPC status codes of errors
`receiver.py`  the server
=============  =====================================================================
"""
