"""
The command `quiver`, one module per sub-command. No other package prints.

Exit codes: 0 success, 1 damage or failure, 2 usage error. Sub-commands import their dependencies when they are called,
so `quiver --help` is fast and works without the extras.

=================  ======================================================================
module             purpose
=================  ======================================================================
`main.py`          the entry point; converts errors to one line and an exit code
`run.py`           `quiver run`
`demo.py`          `quiver demo`
`inspect.py`       `quiver inspect`
`verify.py`        `quiver verify`
`repair.py`        `quiver repair`
`snapshot.py`      `quiver snapshot` and `quiver restore`
`cold_restore.py`  `quiver restore --cold`: restore from the object tier
`migrate.py`       `quiver migrate`
`stats/`           `quiver stats` and `quiver top`
`status/`          `quiver status`: the status page
`tail/`            `quiver tail`: rows as they are ingested
`subscribers.py`   `quiver subscribers`
`dead_letters.py`  `quiver dead-letters`
`export.py`        `quiver export`
`doctor.py`        `quiver doctor`
`bench.py`         `quiver bench`
`measure.py`       the measurements of `quiver bench`
`topic/`           `quiver topic`
`aof/`             `quiver aof`
`flight/`          `quiver serve`
`qwp/`             `quiver qwp`
`version.py`       `quiver --version`
`console/`         output and parsing of arguments
`describers.py`    the kinds of paths: which describer `inspect`, `verify` and `stats` use
`object_store.py`  options for the locations of object and metadata stores
`reports.py`       the last success and failure of exporters
=================  ======================================================================
"""
