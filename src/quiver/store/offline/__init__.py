"""
Tools for a store that no process has open: repair, salvage, migration.

==================  ==================================================================
module              purpose
==================  ==================================================================
`closed.py`         locks a store so that no process can open it
`repair.py`         repairs damaged files, keeps a copy of them, and reports any loss
`salvage.py`        recovers bundles of a damaged segment from the log
`repair_report.py`  the result of a repair
`migrate.py`        converts a store to another format profile or slot table
==================  ==================================================================
"""
