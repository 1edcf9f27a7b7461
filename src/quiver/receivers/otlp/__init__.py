"""
OTLP over gRPC and HTTP.

==================  ==================================================================================================
module              purpose
==================  ==================================================================================================
`json_requests.py`  conversion of OTLP/JSON to protobuf (pure)
`grpc_receiver.py`  OTLP/gRPC
`http_receiver.py`  OTLP/HTTP
`http_listener.py`  a listening socket with limits on connections, handshakes, request heads and idle time
==================  ==================================================================================================
"""
