"""
Tools for a store that no process has open: repair, salvage, migration.

==================  ===========================================================
module              purpose
==================  ===========================================================
`closed.py`         makes sure of that
`repair.py`         what can be mended is; a copy is kept; what is gone is said
`salvage.py`        what can be mended is; a copy is kept; what is gone is said
`repair_report.py`  what a repair did
`migrate.py`        another format profile or slot table
==================  ===========================================================
"""
