"""
Queries: the rows of one slot or of one view as a table, while a writer may have the store open.

==================  ==================================================================================
module              purpose
==================  ==================================================================================
`scan.py`           `Scan`: a table that other programs can read, and what it reads from one directory
`slot_scan.py`      the rows of one slot, with one schema even if schemas changed
`view_scan.py`      the rows of one view: log records, spans or data points
`row_origin.py`     the columns that say from which node and segment of a fleet a row is (pure)
`time_range.py`     the range of times of a query (pure)
==================  ==================================================================================
"""
