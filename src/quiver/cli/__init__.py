"""
The command `quiver`: one file a sub-command. Nothing else in the package prints.

Exit codes: 0 fine, 1 damaged or failed, 2 wrong use. Sub-commands import what they need when they are called, so
that `quiver --help` is quick and works without the extras.

=================  ===================================================================================================
module             purpose
=================  ===================================================================================================
`aof/`             `quiver aof`
`console/`         What commands print, and how they parse what people type
`qwp/`             `quiver qwp`
`stats/`           `quiver stats` and `quiver top`
`topic/`           `quiver topic`
`main.py`          the entry point and the application; errors become one sentence and an exit code
`run.py`           the pipeline
`demo.py`          the pipeline
`dead_letters.py`  what exporters gave up
`inspect.py`       what a store holds, read beside its writer
`verify.py`        what a store holds, read beside its writer
`repair.py`        what changes a directory, or copies one
`migrate.py`       what changes a directory, or copies one
`snapshot.py`      what changes a directory, or copies one
`subscribers.py`   who is behind; data as files
`export.py`        who is behind; data as files
`doctor.py`        the disk
`bench.py`         the disk
`measure.py`       what `stats` counts, and what `bench` measures
`cold_restore.py`  `quiver restore --cold URL DIR`: a store made again from its object tier
`descriptions.py`  Files described to people: read no further than their kind can be long
`object_store.py`  The options of every command that takes the URL of an object store or a metadata store, and the
                   location that they describe
`reports.py`       How the last attempts of an exporter ended, as its reports say
`version.py`       `quiver --version`
=================  ===================================================================================================
"""
