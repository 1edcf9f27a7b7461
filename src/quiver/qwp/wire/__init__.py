"""
The encoding of QWP messages and answers. No sockets, no clock.

===================  =======================================================================
file                 purpose
===================  =======================================================================
`column_types.py`    the column types, their codes and widths (pure)
`varint.py`          integers of one to ten bytes, one at a time or many (pure)
`gorilla.py`         decoding of compressed timestamps (pure)
`columns.py`         encoding of one column (pure)
`arrow_columns.py`   encoding of Arrow arrays with kernels (pure)
`message.py`         encoding of a message of tables (pure)
`decoder.py`         decoding of a message (pure)
`pieces.py`          splitting of a message that is too large for a server (pure)
`decoded.py`         decoded tables, as Python values and as Arrow (pure)
`responses.py`       the server's answers: OK, durable, refused (pure)
`queries.py`         refusal of queries, for servers that answer none (pure)
===================  =======================================================================
"""
