"""
OTAP streams: decoding and encoding of their Arrow IPC messages. Pure.

====================  =======================================================================================
module                purpose
====================  =======================================================================================
`decoder.py`          `StreamDecoder`: messages of a stream → tables with plain ids
`encoder.py`          `StreamEncoder`: tables → messages, with dictionaries that grow from message to message
`dictionaries.py`     validation of a stream's dictionaries, and reduction to the values that a batch uses
`transport_ids.py`    transport-encoded ids ↔ plain ids
`transport_order.py`  tables with plain ids → sorted tables with transport-encoded ids
`arrow_message.py`    the protobuf messages of a stream
`ipc_messages.py`     the lengths inside Arrow IPC messages, checked before Arrow reads them
====================  =======================================================================================
"""
