"""
The pipeline: a YAML file that connects receivers, buffers, processors and exporters, and the processes that run it.

In the order in which a file is processed:

=====================  ====================================================================================
module                 purpose
=====================  ====================================================================================
`config/`              the pipeline file: parsed, validated, and turned into settings
`plugins.py`           which node a `plugin_urn` or `type` names, and the shape of its `config`
`model.py`             a validated pipeline: its nodes, its buffers, and the routes between them
`graph.py`             loads and validates a file: text → `Pipeline`
`explain.py`           describes what the pipeline will do
`descriptions/`        the same in words, and the JSON schema of pipeline files
`diagram.py`           draws it, as text and for Mermaid
`processes/`           the processes of a pipeline: started, watched, restarted and stopped
`ingest.py`            the child with the stores and the receivers; with cores, one for each core
`forwarding.py`        in the ingest process: the exporters that need no Spark
`metrics_endpoint.py`  in the ingest process: `/metrics`, `/livez`, `/readyz`
`health.py`            in the ingest process: whether it is ready, and why not
`port_limits.py`       in the ingest process: limits on connections
`export.py`            the child with the Spark driver
`queries.py`           in the Spark process: the queries, and how each is started
`counts.py`            the counters of the Spark process, served by the first ingest process
`exporter_figures.py`  the state of every exporter, read from files in the stores
`replay.py`            replay of dead letters of exporters on Spark
`backup.py`            snapshot and restore of a complete pipeline
`companion_stores.py`  the directories of a pipeline next to a store
`disk.py`              the section `disk`: one cap on the disk space of all buffers
=====================  ====================================================================================

The children share nothing but the directories of the stores: each may die and restart without the other.
"""
