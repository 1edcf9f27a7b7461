"""
The bytes of QWP on the wire: messages out, messages in, and the server's answers. No sockets, no clock.

===================  =======================================================================
file                 purpose
===================  =======================================================================
`column_types.py`    the types, their codes and widths
`varint.py`          numbers of one to ten bytes, one at a time or many
`gorilla.py`         compressed timestamps, read
`columns.py`         what one column of a message is made of, to be written
`arrow_columns.py`   columns from Arrow arrays, by kernels
`message.py`         a message of tables, written
`decoder.py`         a message, read
`pieces.py`          a message that is too large for a server, cut into smaller ones
`decoded.py`         what was read: as Python values, as Arrow
`responses.py`       what the server answers: OK, durable, refused
`queries.py`         how a server that answers no queries says so
===================  =======================================================================
"""
