"""
Flat views: one row for each log record, span or data point. Pure.

=====================  ===================================================================================
module                 purpose
=====================  ===================================================================================
`view.py`              `view`, `decode_requests`, `decode_groups`: requests → rows
`schemas.py`           the columns of the views `logs`, `spans`, `metrics`
`event_time.py`        the event time of each row
`parquet_options.py`   dictionaries and statistics of the columns in Parquet files
`columnar.py`          requests → columns, without an object per record
`columnar_records.py`  the columns of `logs` and `spans` from nested Arrow
`columnar_metrics.py`  the columns of `metrics` from nested Arrow: points of five kinds in document order
`columnar_tables.py`   tables → columns, without converting to a request
`columns.py`           requests → columns by way of protobuf objects, for data that need the fallback
`logs.py`              the columns of `logs` from objects
`spans.py`             the columns of `spans` from objects
`metrics.py`           the columns of `metrics` from objects
`nested_json.py`       arrays and maps inside values → JSON
`typed_arrays.py`      values and lists of attributes → typed values and maps
=====================  ===================================================================================
"""
