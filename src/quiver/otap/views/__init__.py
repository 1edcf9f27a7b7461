"""
Flat views: one row for each log record, span or data point. Pure.

=====================  ===============================================================================================
module                 purpose
=====================  ===============================================================================================
`view.py`              `view`, `decode_requests`, `decode_groups`: requests → rows
`schemas.py`           the columns of the views `logs`, `spans`, `metrics`
`columnar_tables.py`   tables → columns without a request between
`columnar.py`          requests → columns without an object per record; `columnar_records.py`, `columnar_metrics.py`
`columns.py`           the same from protobuf objects, for what is odd; `logs.py`, `spans.py`, `metrics.py`
`columnar_metrics.py`  The columns of the view `metrics`, from nested Arrow: the points of five kinds, back in
                       document order
`columnar_records.py`  The columns of the views `logs` and `spans`, from nested Arrow
`logs.py`              The columns of the `logs` view
`metrics.py`           The columns of the `metrics` view: one row per data point, whatever its kind
`nested_json.py`       Arrays and maps inside AnyValues → JSON
`spans.py`             The columns of the `spans` view
`typed_arrays.py`      AnyValues and lists of attributes → typed values and maps of a view
=====================  ===============================================================================================
"""
