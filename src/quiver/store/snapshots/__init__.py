"""
Consistent copies of stores, made beside their writers, and stores restored from them.

==================  ==============================================================
module              purpose
==================  ==============================================================
`snapshot.py`       consistent copies of stores beside their writers, and back
`new_directory.py`  directories that are built under another name and renamed last
`copying.py`        one store of such a copy, file by file
==================  ==============================================================
"""
