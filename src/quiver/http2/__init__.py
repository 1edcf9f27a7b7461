"""
The parts of HTTP/2 (RFC 9113) that gRPC needs, as pure functions: bytes in, values out.

==============  ==================================================================
module          purpose
==============  ==================================================================
`frames.py`     encoding of frames, and the numbers of the protocol
`hpack.py`      HPACK (RFC 7541): a bounded decoder, and an encoder without state
`huffman.py`    the Huffman code of HPACK
==============  ==================================================================
"""
