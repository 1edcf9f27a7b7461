"""
The format `quiver-fleet`: the nodes of a fleet as one Spark source.

=====================  ==================================================================
module                 purpose
=====================  ==================================================================
`source.py`            the data source, and the fleet as a log that Spark reads
`segment_rows.py`      tasks: fetch segments, verify them, and return their rows
=====================  ==================================================================

Everything that needs no Spark is in `store/reading/fleet/`.
"""
