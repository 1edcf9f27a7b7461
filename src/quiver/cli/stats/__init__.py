"""
`quiver stats` and `quiver top`.

================  ========================================================
module            purpose
================  ========================================================
`top.py`          a running pipeline, watched
`top_figures.py`  a running pipeline, watched
`commands.py`     what a store holds, read beside its writer
`store.py`        what `stats` counts, and what `bench` measures
`waiting.py`      What an exporter has to try again, as its retry sets say
`watching.py`     A look that is repeated: `--watch`, `--every`, `--looks`
================  ========================================================
"""
