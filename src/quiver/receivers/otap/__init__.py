"""
OTAP over gRPC: Arrow streams from OpenTelemetry exporters.

=============  ======================================================
module         purpose
=============  ======================================================
`settings.py`  limits of OTAP streams
`intake.py`    the handling of messages: decode, check, store, answer
`receiver.py`  OTAP/gRPC, with OTLP/gRPC on the same port
=============  ======================================================
"""
