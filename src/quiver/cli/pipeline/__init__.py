"""
Commands about pipeline files.

=============  =============================================================
module         purpose
=============  =============================================================
`init.py`      writes a commented pipeline file
`schema.py`    prints the JSON schema of pipeline files
`plugins.py`   lists the plugins that a pipeline file can name
`templates/`   the pipeline files that `quiver init` writes
=============  =============================================================
"""
