"""
Forwarding of a store's bundles without Spark. A bundle is resolved only when its destination has confirmed it.

====================  ==================================================================
module                purpose
====================  ==================================================================
`settings.py`         endpoint, timeout, TLS, headers, request sizes
`certificates.py`     the TLS files, checked when a sender is created
`requests.py`         a bundle → the OTLP requests in it (pure)
`reply.py`            classification of answers: confirmed, retry, refused (pure)
`size_limit.py`       the request size limit, configured or learned
`parts.py`            sending of a large request in parts; which records are settled
`taken.py`            claimed bundles; combination of small requests (pure)
`attempts.py`         bundles that were tried and are not resolved
`counts.py`           metrics and events
`otlp_grpc.py`        OTLP over gRPC
`otlp_http.py`        OTLP over HTTP
`otap_grpc.py`        OTAP over gRPC, with OTLP as fallback
`ports.py`            protocols for the source of bundles and the sender of requests
`circuit_breaker.py`  detection that the destination is down, and probing (pure)
`once.py`             one attempt to send a bundle, without retry
`forward_state.py`    the state that a forwarder reports
`forward.py`          threads that drain a subscriber: send, acknowledge, defer or reject
====================  ==================================================================
"""
