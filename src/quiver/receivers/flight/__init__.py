"""
Arrow Flight: stores and topics for clients in other processes and languages.

==================  ==========================================================================
module              purpose
==================  ==========================================================================
`settings.py`       address, sizes, acknowledgement, security
`messages.py`       the protobuf messages (pure)
`command.py`        tickets and descriptors: JSON commands (pure)
`answers.py`        the metadata of clients: sequence numbers, answers to deliveries (pure)
`batches.py`        record batches as messages, with dictionaries and limits
`bundles.py`        complete bundles as record batches
`sources.py`        a store that is offered
`served_topics.py`  topics that are offered
`serving.py`        stores and topics by name
`reading.py`        the messages of a stream that a client reads
`putting.py`        a stream that a client writes into a store: decode, check, store
`producing.py`      the same for a topic
`subscribing.py`    a subscriber of a store for a client: claims and answers
`consuming.py`      the same for a subscription of a topic
`streams.py`        acknowledgements of a put, and deliveries of an exchange
`conversation.py`   a call together with its limits
`status.py`         gRPC status codes of errors
`receiver.py`       the server
==================  ==========================================================================
"""
