"""
OTLP over gRPC and HTTP.

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`json_requests.py`  OTLP in JSON → protobuf (pure)
`grpc_receiver.py`  OTLP/gRPC
`http_receiver.py`  OTLP/HTTP; `http_listener.py` connections within bounds
`http_listener.py`  A listening socket in front of a server, which bounds what the server does not: how many
                    connections there are, how long a TLS handshake may take, how long the head of a request, and how
                    long nothing may be said
==================  ==================================================================================================
"""
