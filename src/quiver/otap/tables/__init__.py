"""
OTAP tables: conversion from and to OTLP requests. Pure.

======================  =============================================================================
module                  purpose
======================  =============================================================================
`payload_schema.py`     the tables of OTAP, their columns and their relations
`payload_arrays.py`     one table ↔ plain columns: defaults, dictionaries, nulls
`columnar_payloads.py`  requests → tables with plain ids, without an object per record
`from_otlp.py`          requests → tables, by way of protobuf objects where columns cannot do it
`to_otlp.py`            tables → requests
`validation.py`         validation of tables: they must convert to a request and to rows
`digest.py`             `digest_of_tables`, to recognize tables that were sent before
`cbor.py`               nested values as CBOR, one value at a time
`cbor_columns.py`       flat arrays and maps in CBOR, one column at a time
======================  =============================================================================
"""
