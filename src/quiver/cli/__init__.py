"""
The command `quiver`: one file a sub-command. Nothing else in the package prints.

Exit codes: 0 fine, 1 damaged or failed, 2 wrong use. Sub-commands import what they need when they are called, so
that `quiver --help` is quick and works without the extras.

| module | purpose |
|---|---|
| `main` | the entry point and the application; errors become one sentence and an exit code |
| `output`, `progress` | tables for people, JSON for programs; a word while something takes long |
| `instants` | times as people type them |
| `run`, `demo` | the pipeline |
| `top`, `top_figures` | a running pipeline, watched |
| `dead_letters` | what exporters gave up |
| `topic`, `topic_objects`, `aof`, `sf` | the other logs |
| `inspect`, `verify`, `stats` | what a store holds, read beside its writer |
| `repair`, `migrate`, `snapshot` | what changes a directory, or copies one |
| `subscribers`, `export` | who is behind; data as files |
| `doctor`, `bench` | the disk |
| `store_stats`, `measure` | what `stats` counts, and what `bench` measures |
"""
