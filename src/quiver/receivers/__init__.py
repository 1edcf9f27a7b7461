"""
Receivers: OTLP over gRPC and HTTP, OTAP over gRPC, QWP over WebSocket, topics and other stores, all into one store; and
a server of stores over Arrow Flight.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`otap/`              OTAP over gRPC: Arrow streams from OpenTelemetry exporters
`otlp/`              OTLP over gRPC and HTTP
`grpc_server/`       a gRPC server, which accepts messages compressed with Zstandard
`flight/`            Arrow Flight: stores for clients in other processes and languages
`qwp/`               QWP over WebSocket: rows from QuestDB clients, stored before they are confirmed
`topic_receiver.py`  a topic as the source of a pipeline
`fleet_receiver.py`  all nodes of a fleet as the source of a pipeline, each bundle once
`store_receiver.py`  the store of another program as the source of a pipeline
`polled_settings.py` settings of the receivers of topics and of other stores
`settings.py`        addresses, sizes, acknowledgement, dedupe window, keepalive
`security.py`        TLS, tokens and passwords, with files that may be replaced while the port is open
`intake.py`          the handling of requests: check, deduplicate, store, answer
`dedupe.py`          digests of requests, and a dedupe window in memory
`request_window.py`  the dedupe window in a file that all cores share
`header_capture.py`  request headers as resource attributes (pure)
`inflate.py`         bounded decompression of gzip (pure)
`zstd_frames.py`     bounded decompression of Zstandard (pure)
`rpc_status.py`      encoding of Status, RetryInfo and partial success (pure)
`port.py`            the base class of receivers: an address, an event loop, workers
`group_sync.py`      one sync for all clients that wait for the disk
`loop_thread.py`     an event loop in its own thread
`grpc_health.py`     the standard gRPC health service
`places.py`          a bounded number of places for clients, shared between addresses
===================  =================================================================================================
"""
