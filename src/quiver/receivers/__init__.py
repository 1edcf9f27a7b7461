"""
What listens: OTLP over gRPC and HTTP, into one store.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`settings.py`           where to listen, sizes, ack, dedupe window
`intake.py`             what every receiver does with a request: check, recognise, store, answer
`dedupe.py`             requests stored a short while ago, rebuilt from the log
`inflate.py`            gzip within bounds                                       (pure)
`rpc_status.py`         google.rpc.Status and RetryInfo as bytes                 (pure)
`otlp_grpc.py`          OTLP/gRPC
`otlp_http.py`          OTLP/HTTP
======================  ==========================================================================
"""
