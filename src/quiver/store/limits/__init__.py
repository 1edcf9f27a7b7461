"""
Decide whether a bundle is accepted: caps on bytes, free disk space, and waiting for space.

=================  ========================================================================================
module             purpose
=================  ========================================================================================
`admission.py`     accept a bundle; without space: free some, wait for it, or refuse
`capacity.py`      the usage that a size cap is compared with
`side_files.py`    the size of the other files in the directory; a reserve for a full disk
`disk_budget.py`   one cap over everything that several stores have on one disk
`disk_reports.py`  how sinks and the owner of a store agree on disk space for staged segments
`tree_bytes.py`    the size of a directory tree
=================  ========================================================================================
"""
