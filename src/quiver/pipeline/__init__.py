"""
The pipeline: a YAML file that says who receives, what buffers, who exports; and the processes that run it.

In the order a file passes:

| module | purpose |
|---|---|
| `parse` | text → plain values, each with its line; placeholders filled in |
| `plugins` | what each `plugin_urn` is, and the shape of its `config` |
| `graph` | values → checked nodes: who feeds whom, what is missing, what is too much |
| `supervise` | child processes: started, restarted with backoff, stopped in order |
| `run` | `quiver run`: the two children of a pipeline, their logs and the state file |
| `lifeline` | the other end, inside a child: stop when asked, die with the supervisor |
| `child` | what every child begins and ends with: arguments, logging, exit codes |
| `ingest` | the child that owns the store and the receivers |
| `export` | the child that owns the Spark driver and every exporter's query |

`extras` says what to install when a module is missing.

The children share nothing but the store's directory: either may die and come back without the other.
"""
