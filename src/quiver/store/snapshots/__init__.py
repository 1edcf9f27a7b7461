"""
Consistent copies of stores, created while writers have them open, and restored stores.

==================  ==============================================================
module              purpose
==================  ==============================================================
`snapshot.py`       creates, checks and restores snapshots of one or more stores
`new_directory.py`  directories that are built under another name and renamed last
`copying.py`        copies one store, file by file
==================  ==============================================================
"""
