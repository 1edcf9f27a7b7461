"""
`quiver fleet`.

================  ===================================================================================================
module            purpose
================  ===================================================================================================
`commands.py`     `quiver fleet list`, `show`, `lag`, `retire`, `doctor` and `metrics`
`figures.py`      the figures that they print, as they are in JSON
`prometheus.py`   the same figures as Prometheus text
================  ===================================================================================================
"""
