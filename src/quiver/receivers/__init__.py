"""
What listens: OTLP over gRPC and HTTP, OTAP over gRPC, into one store.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`settings.py`           where to listen, sizes, ack, dedupe window, keepalive
`security.py`           TLS, tokens and passwords of any port; files that may be replaced
`intake.py`             what every receiver does with a request: check, recognise, store, answer
`dedupe.py`             requests stored a short while ago, rebuilt from the log
`captured.py`           request headers as attributes of resources        (pure)
`otlp_json.py`          OTLP in JSON → protobuf                           (pure)
`inflate.py`            gzip within bounds, `zstd_frames.py` zstd         (pure)
`rpc_status.py`         Status, RetryInfo, partial success as bytes       (pure)
`otlp_grpc.py`          OTLP/gRPC
`otlp_http.py`          OTLP/HTTP; `http_listener.py` its connections within bounds
`otap_settings.py`      limits of OTAP streams
`otap_intake.py`        messages of OTAP streams: decode, check, store, answer
`otap_grpc.py`          OTAP/gRPC, with OTLP/gRPC on the same port
`loop_thread.py`        the thread on which a receiver waits for the network
======================  ==========================================================================
"""
