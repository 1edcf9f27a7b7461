"""
`quiver status`: the status page, served over HTTP.

================  =============================================================================
module            purpose
================  =============================================================================
`commands.py`     `quiver status`
`application.py`  the WSGI application: who may ask for which path (no disk)
`page.html`       the page: one file without external resources; it shows `/api/status`
`snapshot.py`     the content of `/api/status`, read from files and the metrics port
`tracks.py`       the files and positions of each kind of log, in the form that is drawn
`dead_letters.py` the dead letters of the page: runs `quiver dead-letters`
================  =============================================================================
"""
