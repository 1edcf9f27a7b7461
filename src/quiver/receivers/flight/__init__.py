"""
Arrow Flight: stores for clients in other processes and languages.

=================  ==========================================================================
module             purpose
=================  ==========================================================================
`settings.py`      address, sizes, acknowledgement, security
`messages.py`      the protobuf messages (pure)
`command.py`       tickets and descriptors: JSON commands (pure)
`answers.py`       the metadata of clients: sequence numbers, answers to deliveries (pure)
`batches.py`       record batches as messages, with dictionaries and limits
`bundles.py`       complete bundles as record batches
`sources.py`       the stores that are offered, by name
`reading.py`       the messages of a stream that a client reads
`putting.py`       a stream that a client writes: decode, check, store
`subscribing.py`   a subscription of a client: claims and answers
`streams.py`       acknowledgements of a put, and deliveries of an exchange
`conversation.py`  a call together with its limits
`status.py`        gRPC status codes of errors
`receiver.py`      the server
=================  ==========================================================================
"""
