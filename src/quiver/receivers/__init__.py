"""
What listens: OTLP over gRPC and HTTP, OTAP over gRPC, QWP over WebSocket, into one store.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`otap/`              OTAP over gRPC: Arrow streams from OpenTelemetry exporters
`otlp/`              OTLP over gRPC and HTTP
`qwp/`               QWP over WebSocket: rows from QuestDB clients, stored before they are confirmed
`topic_receiver.py`  in it: a topic, or the store of another program, as a source
`store_receiver.py`  in it: a topic, or the store of another program, as a source
`settings.py`        where to listen, sizes, ack, dedupe window, keepalive
`security.py`        TLS, tokens and passwords of any port; files that may be replaced
`intake.py`          what every receiver does with a request: check, recognise, store, answer
`dedupe.py`          what a request is known by; requests stored a short while ago, in memory
`request_window.py`  the same in a file that all cores share
`header_capture.py`  request headers as attributes of resources (pure)
`inflate.py`         gzip within bounds, `zstd_frames.py` zstd (pure)
`rpc_status.py`      Status, RetryInfo, partial success as bytes (pure)
`port.py`            what every receiver is besides its protocol: an address, a loop, workers
`loop_thread.py`     the thread on which a receiver waits for the network
`grpc_health.py`     The standard health service of gRPC servers, `grpc.health.v1.Health`, for the receivers
`places.py`          Places for clients that are waited for: bounded in number, shared between addresses, and taken
                     from the slowest
`zstd_frames.py`     Zstandard from outside (RFC 8878), never inflated beyond a limit
===================  =================================================================================================
"""
