"""
Whether a bundle may come in: caps on bytes, the room that is left on the disk, and who waits.

=================  ===================================================================================================
module             purpose
=================  ===================================================================================================
`admission.py`     may a bundle come in; if not, is room made, waited for, or refused
`capacity.py`      what a size cap is held against
`side_files.py`    what else lies in the directory; a reserve for a full disk
`disk_budget.py`   One cap over everything that several stores have on one disk: their logs and segments, what Spark
                   sinks staged for them, and their dead letters
`disk_reports.py`  Room for what is staged beside an open store: Spark sinks learn its cap, and say what they wait for
`tree_bytes.py`    How many bytes a directory of ours takes, with all that is below it
=================  ===================================================================================================
"""
