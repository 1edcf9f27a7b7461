"""
The pipeline: a YAML file that says who receives, what buffers, who exports; and the processes that run it.

In the order a file passes:

=====================  ===============================================================================================
module                 purpose
=====================  ===============================================================================================
`config/`              The pipeline file: parsed, checked, and turned into settings
`processes/`           The processes of a pipeline: started, watched, restarted and stopped
`plugins.py`           what each `plugin_urn` or `type` is, and the shape of its `config`
`graph.py`             all of it, checked: a `Pipeline`
`explain.py`           what it will do, in words and drawn
`diagram.py`           what it will do, in words and drawn
`ingest.py`            the child that owns the stores and the receivers; there may be several, one for each core
`metrics_endpoint.py`  in it: where metrics are told
`forwarding.py`        in it: the exporters that need no Spark
`export.py`            the child that owns the Spark driver
`queries.py`           in it: which queries there are, and how each is started
`counts.py`            what it counts, told where the first ingest process tells its metrics
`backup.py`            all that a pipeline keeps, copied and restored as one unit by a command
`replay.py`            an exporter of a file, made by a command: for its dead letters
`companion_stores.py`  What a pipeline keeps beside the directory of a store: `<store>.run`, and the buffers that
                       stand in no file
`disk.py`              `disk`, beside `nodes`: one cap over everything that the buffers of a pipeline have on the disk
`exporter_figures.py`  How every exporter of a pipeline stands, read from what lies beside the stores: the same
                       figures for those of this process and those of the Spark process, right from the first moment
                       of either
`health.py`            Whether an ingest process is ready for requests, and what is missing. Answered over HTTP and by
                       `grpc.health.v1`
`model.py`             A pipeline, checked: its nodes, its buffers, and the routes between them
`port_limits.py`       How many connections the ports of an ingest process may take: no more than it can have files
                       open
=====================  ===============================================================================================

`words` says sizes and times as people do. `beside` names what lies beside a store. `extras` says what to install when a
module is missing.

The children share nothing but the stores' directories: either may die and come back without the other.
"""
