"""
What sends on: a store's bundles to a far side, without Spark, resolved only when the far side has them.

====================  =================================================================
module                purpose
====================  =================================================================
`settings.py`         where to send, how long to wait, TLS, headers
`certificates.py`     what the files of TLS hold, checked before they are used
`requests.py`         a bundle → the OTLP requests in it (pure)
`reply.py`            what an answer means: confirmed, again later, never again (pure)
`size_limit.py`       how large a request may be, as set or as learned
`parts.py`            a large request sent in parts, and which records are settled
`taken.py`            claimed bundles, and small requests combined (pure)
`attempts.py`         the bundles that were tried and are not resolved
`counts.py`           what is counted and reported
`otlp_grpc.py`        OTLP/gRPC
`otlp_http.py`        OTLP/HTTP
`otap_grpc.py`        OTAP/gRPC, and OTLP where that is not understood
`ports.py`            where bundles come from, where requests go: two protocols
`circuit_breaker.py`  is one bundle sick, or is the far side down? (pure)
`once.py`             one bundle, by hand: no retry
`forward_state.py`    what a forwarder tells of itself
`forward.py`          take, send, acknowledge or defer: threads that drain a subscriber
====================  =================================================================
"""
