"""
The command `quiver`: one file a sub-command. Nothing else in the package prints.

Exit codes: 0 fine, 1 damaged or failed, 2 wrong use. Sub-commands import what they need when they are called, so
that `quiver --help` is quick and works without the extras.

| module | purpose |
|---|---|
| `main` | the entry point and the application; errors become one sentence and an exit code |
| `output` | tables for people, JSON for programs |
| `run`, `demo`, `inspect`, `verify`, `stats` | the sub-commands |
| `store_stats` | what `stats` counts |
"""
