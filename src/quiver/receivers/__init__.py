"""
What listens: OTLP over gRPC and HTTP, OTAP over gRPC, QWP over WebSocket, into one store.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`settings.py`           where to listen, sizes, ack, dedupe window, keepalive
`security.py`           TLS, tokens and passwords of any port; files that may be replaced
`intake.py`             what every receiver does with a request: check, recognise, store, answer
`dedupe.py`             what a request is known by; requests stored a short while ago, in memory
`request_window.py`     the same in a file that all cores share
`captured.py`           request headers as attributes of resources        (pure)
`otlp_json.py`          OTLP in JSON → protobuf                           (pure)
`inflate.py`            gzip within bounds, `zstd_frames.py` zstd         (pure)
`rpc_status.py`         Status, RetryInfo, partial success as bytes       (pure)
`otlp_grpc.py`          OTLP/gRPC
`otlp_http.py`          OTLP/HTTP; `http_listener.py` connections within bounds
`otap_settings.py`      limits of OTAP streams
`otap_intake.py`        messages of OTAP streams: decode, check, store, answer
`otap_grpc.py`          OTAP/gRPC, with OTLP/gRPC on the same port
`qwp_settings.py`       where to listen for QWP, sizes, ack, window
`qwp_replay.py`         what a client sends again, told from what another one says, too
`qwp_ledger.py`         the file of what may be sent again
`qwp_intake.py`         messages of QWP connections: decode, recognise, store
`qwp_connection.py`     one WebSocket: messages in, answers out
`qwp.py`                QWP, listening
`port.py`               what every receiver is besides its protocol: an address, a loop, workers
`loop_thread.py`        the thread on which a receiver waits for the network
======================  ==========================================================================
"""
