"""
OTAP tables: made from OTLP requests, and turned back into them. Pure.

======================  ==============================================================================================
module                  purpose
======================  ==============================================================================================
`payload_schema.py`     the tables of OTAP, their columns and how they hang together
`columnar_payloads.py`  requests → tables with plain ids, without an object per record
`from_otlp.py`          the same, and from protobuf objects what is odd; `to_otlp.py` the way back
`digest.py`             `digest_of_tables`: were these tables sent before?
`payload_arrays.py`     one table ↔ lists: defaults left out, dictionaries
`cbor.py`               nested values in tables; `cbor_columns.py`: are many of them sound?
`validation.py`         `check_tables`: will a request and rows come out of these tables?
`cbor_columns.py`       CBOR of flat arrays and maps, a whole column at a time: is it sound, how many values are in
                        it, how is it written?
`to_otlp.py`            OTAP tables → an OTLP export request. Ids may be plain or as they travel: their metadata, else
                        the defaults, say it
======================  ==============================================================================================
"""
