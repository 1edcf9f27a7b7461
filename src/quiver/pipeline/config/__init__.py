"""
The pipeline file: parsed, validated, and turned into settings.

===================  ==================================================================================
module               purpose
===================  ==================================================================================
`base.py`            the base class of all configs; keys that are fields of a settings dataclass
`parse.py`           YAML → plain values with line numbers; placeholders filled in
`shapes.py`          values of either shape → nodes and edges
`flow.py`            nodes → buffers and routes, including implicit buffers (pure)
`route_tables.py`    the tables along a route: those of the signals, and those that queries add
`values.py`          sizes, durations, addresses and file modes as written in YAML
`formatting.py`      sizes and durations for people
`receiver_place.py`  where a receiver runs, and how its settings adapt to that
`receiver.py`        receivers that listen on a port: OTLP, and the section `metrics`
`otap.py`            the OTAP receiver
`qwp.py`             the QWP receiver
`polled.py`          receivers that poll a source instead of listening on a port
`store.py`           the receiver that reads the store of another program
`topic.py`           the exporter to a topic, and the receiver that reads one
`processor.py`       the persistence node in both of its forms, and the processors on Spark
`exporter.py`        exporters: forwarders in the ingest process, and queries in the Spark process
`limits.py`          the sections `memory` and `disk`
`spark.py`           the section `spark`
===================  ==================================================================================
"""
