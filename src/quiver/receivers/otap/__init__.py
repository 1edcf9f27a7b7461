"""
OTAP over gRPC: Arrow streams from OpenTelemetry exporters.

=============  ======================================================
module         purpose
=============  ======================================================
`settings.py`  limits of OTAP streams
`intake.py`    messages of OTAP streams: decode, check, store, answer
`receiver.py`  OTAP/gRPC, with OTLP/gRPC on the same port
=============  ======================================================
"""
