"""
OTAP streams: Arrow IPC messages of a connection, decoded and encoded. Pure.

====================  ================================================================================================
module                purpose
====================  ================================================================================================
`decoder.py`          `StreamDecoder`: messages of an OTAP stream → tables; `encoder.py` the sender
`dictionaries.py`     its dictionaries: validated once, kept as far as they are used
`transport_ids.py`    ids as they travel → plain; `transport_order.py` the way back, sorted
`arrow_message.py`    the protobuf messages of a stream; `ipc_pieces.py`: the lengths inside them
`encoder.py`          The sending end of one OTAP stream: tables → messages, with dictionaries that grow from message
                      to message
`ipc_pieces.py`       Arrow IPC messages, looked at before Arrow sees them: what is in them, and what would they
                      become?
`transport_order.py`  Tables with plain ids → columns as they travel: sorted, ids renumbered, then written as
                      differences
====================  ================================================================================================
"""
