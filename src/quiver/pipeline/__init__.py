"""
The pipeline: a YAML file that says who receives, what buffers, who exports; and the processes that run it.

In the order a file passes:

| module | purpose |
|---|---|
| `parse` | text → plain values, each with its line; placeholders filled in |
| `shapes` | values of either shape → nodes: what each is, whom it feeds |
| `plugins` | what each `plugin_urn` or `type` is, and the shape of its `config` |
| `receiver_config`, `processor_config`, `exporter_config` and the other `…_config` | those shapes, of `config_values` |
| `receiver_place` | where a receiver runs, and what that asks of its settings |
| `flow` | nodes → buffers and the routes out of each, also those that stand in no file |
| `graph` | all of it, checked: a `Pipeline` |
| `explain`, `picture` | what it will do, in words and drawn |
| `supervise` | child processes: started, restarted with backoff, renewed, stopped in order |
| `log_files` | their logs, kept short |
| `run` | `quiver run`: the children of a pipeline, their logs and the state file |
| `reload` | what a changed file asks for, and what of it needs a restart |
| `lifeline` | the other end, inside a child: stop when asked, reload when asked, die with the supervisor |
| `child` | what every child begins and ends with: arguments, logging, exit codes |
| `ingest` | the child that owns the stores and the receivers; there may be several, one for each core |
| `topic_receiver`, `store_receiver` | in it: a topic, or the store of another program, as a source |
| `metrics_endpoint` | in it: where metrics are told |
| `forwarding` | in it: the exporters that need no Spark |
| `export` | the child that owns the Spark driver |
| `queries` | in it: which queries there are, and how each is started |
| `counts` | what it counts, told where the first ingest process tells its metrics |
| `backup` | all that a pipeline keeps, copied and restored as one unit by a command |
| `replay` | an exporter of a file, made by a command: for its dead letters |

`words` says sizes and times as people do. `beside` names what lies beside a store. `extras` says what to install when a
module is missing.

The children share nothing but the stores' directories: either may die and come back without the other.
"""
