"""
`quiver stats` and `quiver top`.

================  ===========================================================
module            purpose
================  ===========================================================
`commands.py`     `quiver stats`
`store.py`        the figures of `quiver stats`
`top.py`          `quiver top`
`top_figures.py`  the figures of `quiver top`
`waiting.py`      the pending retries of an exporter
`watching.py`     repeated display: `--watch`, `--every`, `--count`
================  ===========================================================
"""
