"""
The pipeline file: parsed, checked, and turned into settings.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`parse.py`           text → plain values, each with its line; placeholders filled in
`shapes.py`          values of either shape → nodes: what each is, whom it feeds
`receiver_place.py`  where a receiver runs, and what that asks of its settings
`flow.py`            nodes → buffers and the routes out of each, also those that stand in no file
`formatting.py`      says sizes and times as people do. `beside` names what lies beside a store. `extras` says what to
                     install when a
`exporter.py`        The configs of what sends on: exporters that pass requests on, and exporters that are queries of
                     the Spark process
`limits.py`          `memory` and `disk`, beside `nodes`: how much a pipeline may keep
`otap.py`            The config of what listens for OTAP
`polled.py`          The config of a receiver that fetches what it stores, and listens nowhere
`processor.py`       The configs of what stands between: the persistence node in both of its spellings, and the
                     processors on Spark
`questdb.py`         The config of the exporter to QuestDB
`qwp.py`             The config of what listens for QWP
`receiver.py`        The configs of what listens
`route_tables.py`    Which tables there are along a route: those of the signals, and what queries add to them
`store.py`           The config of a store that another program fills, as the beginning of a pipeline
`topic.py`           The configs of topics in a pipeline: one as the end of a route, one as the beginning of another
                     pipeline
`values.py`          What the configs of all plugins are made of: sizes, durations and addresses as people write them
===================  =================================================================================================
"""
