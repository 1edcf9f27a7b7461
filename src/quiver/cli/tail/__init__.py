"""
`quiver tail`: rows as they are ingested.

==============  ==========================================================
module          purpose
==============  ==========================================================
`commands.py`   `quiver tail`
`rows.py`       rows as plain values, and as lines of text
`conditions.py` the conditions of `--where`
==============  ==========================================================
"""
