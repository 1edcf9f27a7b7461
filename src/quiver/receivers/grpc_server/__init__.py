"""
A gRPC server on asyncio. Unlike the server of `grpcio`, it accepts messages that are compressed with Zstandard.

===============  =======================================================================
module           purpose
===============  =======================================================================
`server.py`      the server: methods, connections, draining, keepalive
`connection.py`  one connection: HTTP/2 frames, flow control, limits
`call.py`        one call: messages, metadata, status
===============  =======================================================================
"""
