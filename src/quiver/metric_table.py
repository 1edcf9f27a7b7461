"""
The table of all metrics: names, units, meanings, and how a gauge is read from the figures of a store.

Counters have the names of each log's specification. A test compares docs/metrics.md with this table, and both with the
metrics that the code emits.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver.exporter_metrics import EXPORTER_METRICS
from quiver.metric import Figures, Metric, Reading
from quiver.metric import counted as _counted
from quiver.metric import counter as _counter
from quiver.metric import gauge as _gauge

__all__ = ["LOG_METRICS", "METRICS"]


def _of_store(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        # With several cores, the value is their sum.
        yield sum(one[key] for one in figures["cores"].values()), {}

    return read


def _of_core(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for core, one in figures["cores"].items():
            yield one[key], {"core_id": str(core)}

    return read


def _of_subscriber(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for subscriber, one in figures["subscribers"].items():
            yield one[key], {"subscriber": subscriber}

    return read


def _of_topic(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for topic, one in figures["topics"].items():
            yield one.get(key), {"topic": topic}

    return read


def _unsynced_messages(figures: Figures) -> Reading:
    for topic, one in figures["topics"].items():
        yield one["next_offset"] - one["durable_offset"], {"topic": topic}


def _subscription_lag(figures: Figures) -> Reading:
    for one in figures["subscriptions"]:
        yield one["lag_messages"], {"topic": one["topic"], "subscription": one["subscription"]}


def _of_log(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for log, one in figures["logs"].items():
            yield one.get(key), {"log": log}

    return read


def _of_slot(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for slot, one in figures["slots"].items():
            yield float(one[key]), {"slot": slot}

    return read


def _of_log_by(key: str, attribute: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for log, one in figures["logs"].items():
            for name, value in one.get(key, {}).items():
                yield value, {"log": log, attribute: name}

    return read


def _unsynced(figures: Figures) -> Reading:
    yield sum(one["wal_position"] - one["wal_synced_position"] for one in figures["cores"].values()), {}


METRICS: tuple[Metric, ...] = (
    # Ingest.
    _counter(
        "quiver.ingest.throttle_total", "{bundle}", "Bundles that were refused or delayed because a limit was reached."
    ),
    _counter("quiver.receiver.requests_total", "{request}", "OTLP requests answered.", "signal", "outcome"),
    _counter(
        "quiver.receiver.items_total", "{item}", "Records, spans, data points and rows received and stored.", "signal"
    ),
    _counter("quiver.receiver.bytes_total", "By", "Bytes of them, decompressed.", "signal"),
    _counter("quiver.receiver.bundles_total", "{bundle}", "Bundles read from the store of another program.", "outcome"),
    _counter("quiver.receiver.batches_total", "{batch}", "OTAP batches answered.", "signal", "outcome"),
    _counter("quiver.receiver.dedupe_unread_total", "{entry}", "Log entries that the dedupe window could not read."),
    _counter("quiver.receiver.unauthorized_total", "{request}", "Requests without known credentials.", "protocol"),
    _counter(
        "quiver.receiver.connections_refused_total",
        "{connection}",
        "Connections refused because of the connection limit.",
        "protocol",
    ),
    _counter("quiver.receiver.calls_total", "{call}", "Flight calls that ended.", "method", "outcome"),
    _counter("quiver.receiver.messages_total", "{message}", "QWP messages answered.", "protocol", "outcome"),
    _counter("quiver.receiver.rows_total", "{row}", "Rows of QWP tables stored.", "protocol"),
    _counter(
        "quiver.receiver.repeated_tables_total",
        "{table}",
        "QWP tables sent again and not stored a second time.",
        "protocol",
    ),
    _counter(
        "quiver.receiver.replay_ledger_failures_total",
        "{time}",
        "Failed reads or writes of the replay ledger of QWP clients.",
    ),
    _counter(
        "quiver.receiver.left_out_total",
        "{part}",
        "Parts of OTLP requests that tables cannot represent.",
        "signal",
        "what",
    ),
    # The log.
    Metric("quiver.wal.fsync.duration", "histogram", "s", "Duration of one sync of the log."),
    _counter("quiver.wal.torn_tail_total", "{file}", "Torn tails of the log, found at open."),
    _gauge(
        "quiver.wal.bytes",
        "By",
        "Bytes of all log files on disk, including preallocated zeros.",
        _of_store("wal_bytes"),
    ),
    _gauge("quiver.wal.files", "{file}", "Log files, including the active one.", _of_store("wal_files")),
    _gauge("quiver.wal.unsynced_bytes", "By", "Bytes that are not synced yet.", _unsynced),
    # Segments.
    _counter("quiver.segment.sealed_total", "{segment}", "Segments written."),
    _counter(
        "quiver.segment.unwritten_total",
        "{segment}",
        "Segments that all subscribers resolved before they were written.",
    ),
    _counter("quiver.segment.flush_failures_total", "{attempt}", "Failed writes of a segment."),
    _counter(
        "quiver.segment.dropped_total",
        "{segment}",
        "Segments dropped by policy before all subscribers had resolved them.",
        "reason",
    ),
    _counter("quiver.segment.damaged_bundles_total", "{bundle}", "Damaged bundles in segments."),
    _gauge("quiver.segment.files", "{segment}", "Sealed segments on disk.", _of_store("segments")),
    _gauge("quiver.segment.bytes", "By", "Bytes of sealed segments.", _of_store("segment_bytes")),
    _gauge(
        "quiver.sink.staged_bytes",
        "By",
        "Bytes staged by Spark sinks and not yet imported.",
        _of_store("staged_bytes"),
    ),
    _gauge(
        "quiver.segment.incomplete",
        "{segment}",
        "Sealed segments that not every subscriber has resolved; all of them if there is no subscriber.",
        _of_store("incomplete_segments"),
    ),
    _gauge("quiver.segment.open_bytes", "By", "Bytes of bundles in the open segment.", _of_store("open_bytes")),
    _gauge("quiver.segment.open_bundles", "{bundle}", "Bundles in the open segment.", _of_store("open_bundles")),
    # Subscribers.
    _counter("quiver.subscriber.acked_bundles_total", "{bundle}", "Bundles acknowledged.", "subscriber"),
    _counter("quiver.subscriber.rejected_bundles_total", "{bundle}", "Bundles rejected.", "subscriber"),
    _counter("quiver.subscriber.deferred_bundles_total", "{bundle}", "Bundles deferred.", "subscriber"),
    _counter(
        "quiver.subscriber.dropped_bundles_total",
        "{bundle}",
        "Bundles dropped before a subscriber resolved them.",
        "subscriber",
        "reason",
    ),
    _counter("quiver.subscriber.read_errors_total", "{bundle}", "Bundles that could not be read.", "subscriber"),
    _counter("quiver.subscriber.audit_lost_lines_total", "{line}", "Lost lines of the audit log of outcomes."),
    _gauge(
        "quiver.subscriber.lag_bundles",
        "{bundle}",
        "Sealed bundles that it has not resolved, including claimed ones.",
        _of_subscriber("pending_bundles"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.lag_bytes",
        "By",
        "Estimated bytes of the unresolved bundles.",
        _of_subscriber("lag_bytes"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.lag_seconds",
        "s",
        "Age of the oldest segment with an unresolved bundle; 0 if there is none.",
        _of_subscriber("lag_seconds"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.claimed_bundles",
        "{bundle}",
        "Bundles that are claimed.",
        _of_subscriber("claimed_bundles"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.progress_age_seconds",
        "s",
        "Time since its progress file changed.",
        _of_subscriber("progress_age_seconds"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.orphan",
        "{subscriber}",
        "1 if it was not registered since the start; its data are retained.",
        _of_subscriber("orphan"),
        "subscriber",
    ),
    # Exporters.
    *EXPORTER_METRICS,
    _counter(
        "quiver.otel.dropped_items_total",
        "{item}",
        "Items that an exporter of the OpenTelemetry SDK could not store.",
        "signal",
        "reason",
    ),
    # Disk space and recovery.
    _counter("quiver.gc.evictions_total", "{segment}", "Segments deleted.", "reason"),
    _counter("quiver.cold.sent_total", "{segment}", "Segments copied to the object tier and verified."),
    _counter("quiver.cold.sent_bytes_total", "By", "Bytes of them."),
    _counter("quiver.cold.removed_total", "{segment}", "Segments removed from the object tier."),
    _counter("quiver.cold.let_go_total", "{segment}", "Local segment files removed because the object tier has them."),
    _counter("quiver.cold.failures_total", "{time}", "Failed operations on the object tier."),
    _counter("quiver.fleet.polls_total", "{request}", "Requests for acknowledged positions.", "subscriber"),
    _counter(
        "quiver.fleet.refused_acks_total",
        "{position}",
        "Acknowledged positions that a node of a fleet did not accept.",
        "subscriber",
        "reason",
    ),
    _counter(
        "quiver.fleet.gone_segments_total",
        "{segment}",
        "Segments that the readers of a fleet cannot read any more, recorded in the bucket.",
        "reason",
    ),
    _counter(
        "quiver.fleet.lost_segments_total",
        "{segment}",
        "Numbers of segments that a reader of a fleet lost: its nodes dropped them, or they are missing.",
        "subscriber",
    ),
    _counter("quiver.fleet.lost_bundles_total", "{bundle}", "Bundles in them, as far as it is known.", "subscriber"),
    _counter(
        "quiver.fleet.rejected_segments_total",
        "{segment}",
        "Segments that a reader of a fleet could not read, or not completely.",
        "subscriber",
        "cause",
    ),
    _counter(
        "quiver.fleet.stopped_nodes_total",
        "{time}",
        "Times that a reader of a fleet stopped reading a node, because of a loss or a second store with its identity.",
        "subscriber",
    ),
    _counter(
        "quiver.fleet.conflicts_total", "{time}", "Times that a node found another store with its identity and stopped."
    ),
    _counter(
        "quiver.retention.size_emergency_total", "{time}", "Times that data were dropped because of the size cap."
    ),
    _gauge("quiver.core.bytes", "By", "Bytes on disk.", _of_core("bytes"), "core_id"),
    _gauge(
        "quiver.core.cap_fraction",
        "{fraction}",
        "Bytes on disk divided by the size cap; no value without a cap.",
        _of_core("cap_fraction"),
        "core_id",
    ),
    Metric("quiver.recovery.duration", "histogram", "s", "Duration of opening the store."),
    _counter(
        "quiver.recovery.damaged_files_total", "{file}", "Damage found at open; the bytes are quarantined.", "kind"
    ),
    _gauge("quiver.quarantine.files", "{file}", "Quarantined files and ranges.", _of_store("quarantined_files")),
)
"""Every metric of the store, its receivers and its exporters."""

LOG_METRICS: tuple[Metric, ...] = (
    # Object stores.
    _counter("quiver.objects.retries_total", "{request}", "Retried requests to an object store.", "operation"),
    # Topics: the log.
    Metric("danube_wal_append_latency_seconds", "histogram", "s", "Duration of sampled appends.", ("topic",)),
    Metric("danube_wal_fsync_latency_seconds", "histogram", "s", "Duration of one sync of a topic's log."),
    _counter("danube_wal_bytes_written_total", "By", "Bytes written to topics' logs."),
    _counter("danube_wal_rotation_total", "{file}", "Rotations of topics' log files."),
    _counter("danube_wal_torn_bytes_total", "By", "Bytes of torn tails, found at open."),
    _counter("danube_wal_damage_total", "{range}", "Damaged ranges of topics' logs; the bytes are quarantined."),
    _counter(
        "danube_wal_messages_lost_total", "{message}", "Messages that a reader could not get because they are lost."
    ),
    _counter("danube_wal_delete_total", "{file}", "Local files deleted.", "reason"),
    _counter(
        "danube_wal_delete_refused_total",
        "{file}",
        "Local files due for deletion that are kept because no verified object has them.",
    ),
    _gauge("danube_wal_cache_size", "{message}", "Messages in memory.", _of_topic("danube_wal_cache_size"), "topic"),
    _gauge("danube_wal_cache_bytes", "By", "Bytes of them.", _of_topic("cache_bytes"), "topic"),
    _gauge("danube_wal_disk_bytes", "By", "Bytes of a topic's local files.", _of_topic("disk_bytes"), "topic"),
    _gauge("danube_wal_files", "{file}", "A topic's local files.", _of_topic("files"), "topic"),
    _gauge(
        "danube_wal_unsynced_messages",
        "{message}",
        "Messages that are not synced yet.",
        _unsynced_messages,
        "topic",
    ),
    # Topics: the objects.
    _gauge(
        "danube_uploader_lag_messages",
        "{message}",
        "Messages that are not in an object yet.",
        _of_topic("upload_lag_messages"),
        "topic",
    ),
    _gauge(
        "danube_uploader_lag_bytes", "By", "Estimated bytes of these messages.", _of_topic("upload_lag_bytes"), "topic"
    ),
    _gauge(
        "danube_uploader_lag_seconds",
        "s",
        "Time since all messages were in objects; 0 while they are.",
        _of_topic("upload_lag_seconds"),
        "topic",
    ),
    Metric("danube_uploader_cycle_duration_seconds", "histogram", "s", "Duration of one upload cycle."),
    _counter("danube_uploader_bytes_uploaded_total", "By", "Bytes of finished objects."),
    _counter(
        "danube_uploader_objects_created_total", "{object}", "Objects uploaded, verified and recorded in the metadata."
    ),
    _counter("danube_uploader_errors_total", "{time}", "Uploads that failed and are retried.", "reason"),
    _counter("danube_uploader_leftovers_total", "{object}", "Unfinished objects of earlier uploads that were removed."),
    Metric("danube_etcd_put_latency_seconds", "histogram", "s", "Duration of writing one descriptor."),
    _counter("danube_etcd_descriptor_write_total", "{descriptor}", "Descriptors written."),
    Metric("danube_cloud_reader_query_duration_seconds", "histogram", "s", "Duration of a query for descriptors."),
    _counter("danube_cloud_reader_bytes_read_total", "By", "Bytes read from objects."),
    _counter("danube_cloud_reader_errors_total", "{object}", "Objects that were damaged, missing or unavailable."),
    _counter("danube_cloud_objects_expired_total", "{object}", "Objects deleted by the retention of objects."),
    # Topics: Spark sinks.
    _counter("danube_sink_messages_total", "{message}", "Messages of Spark sinks that were imported."),
    # Topics: subscriptions.
    _gauge(
        "danube_subscription_lag_messages",
        "{message}",
        "Messages from the first unacknowledged one to the end of the topic.",
        _subscription_lag,
        "topic",
        "subscription",
    ),
    _counter("danube_subscription_redelivery_total", "{message}", "Messages delivered again.", "subscription"),
    _counter(
        "danube_subscription_ack_timeout_total", "{message}", "Messages not acknowledged in time.", "subscription"
    ),
    _counter("danube_subscription_dlq_total", "{message}", "Messages that became dead letters.", "subscription"),
    _counter(
        "danube_subscription_lost_total", "{message}", "Messages removed before they were delivered.", "subscription"
    ),
    # AOF2.
    Metric("aof_append_latency_seconds", "histogram", "s", "Duration of the first append after a flush."),
    Metric(
        "aof_admission_latency_seconds",
        "histogram",
        "s",
        "Time that an append waited for admission.",
        ("kind",),
    ),
    Metric("aof_flush_latency_seconds", "histogram", "s", "Duration of one sync of a segment."),
    Metric("aof_recovery_duration_seconds", "histogram", "s", "Duration of the recovery of a log at open."),
    Metric("aof_hydration_latency_seconds", "histogram", "s", "Duration of hydrating a segment."),
    Metric("aof_segment_bytes", "histogram", "By", "Bytes of a segment when it was sealed, without unused space."),
    _counter("aof_segment_rollovers_total", "{segment}", "Segments that were sealed."),
    _gauge("aof_flush_backlog_bytes", "By", "Bytes that are written and not yet durable.", _of_log("backlog"), "log"),
    _gauge("aof_records", "{record}", "Records ever appended.", _of_log("records"), "log"),
    _counted(
        "aof_appended_records_total",
        "{record}",
        "Records appended since the log was opened.",
        _of_log("appended_records"),
        "log",
    ),
    _counted(
        "aof_appended_bytes_total",
        "By",
        "Bytes of them, including headers of 24 bytes.",
        _of_log("appended_bytes"),
        "log",
    ),
    _gauge(
        "aof_would_block",
        "{append}",
        "Appends refused since the log was opened.",
        _of_log_by("would_block", "kind"),
        "log",
        "kind",
    ),
    _gauge(
        "aof_disk_full",
        "{log}",
        "1 while the disk has no space for a segment or for sealing one.",
        _of_log("disk_full"),
        "log",
    ),
    _gauge(
        "aof_tier_segments",
        "{segment}",
        "Sealed segments of a log with tiers.",
        _of_log_by("residency", "residency"),
        "log",
        "residency",
    ),
    _gauge(
        "aof_tier_queue_depth",
        "{segment}",
        "Segments that wait to be moved between tiers.",
        _of_log_by("queues", "queue"),
        "log",
        "queue",
    ),
    _gauge(
        "aof_upload_lag_seconds",
        "s",
        "Time since the oldest sealed segment without an object was sealed.",
        _of_log("upload_lag_seconds"),
        "log",
    ),
    _gauge(
        "aof_upload_lag_bytes",
        "By",
        "Bytes of records in sealed segments without an object.",
        _of_log("upload_lag_bytes"),
        "log",
    ),
    _gauge(
        "aof_manifest_replay_chunk_count",
        "{file}",
        "Chunks of the manifest log when it was opened.",
        _of_log("replay_chunks"),
        "log",
    ),
    _gauge(
        "aof_manifest_replay_journal_lag_bytes",
        "By",
        "Bytes after them that were never committed.",
        _of_log("replay_journal_lag_bytes"),
        "log",
    ),
    _gauge(
        "aof_manifest_replay_chunk_lag_seconds",
        "s",
        "Age of the newest record of the manifest log when it was opened.",
        _of_log("replay_chunk_lag_seconds"),
        "log",
    ),
    _counter("aof_durable_bytes_total", "By", "Bytes of logs that became durable."),
    _counter("aof_index_failed_total", "{file}", "Sparse indexes that could not be written; they are rebuilt."),
    _counter("aof_sink_records_total", "{record}", "Records of Spark sinks that were imported."),
    _counter("aof_flush_failures_total", "{time}", "Flushes that failed after all retries."),
    _counter("aof_flush_retry_attempts_total", "{time}", "Retried flushes."),
    _counter("aof_flush_retry_failures_total", "{time}", "Retried flushes that failed."),
    _counter("aof_flush_metadata_retry_attempts_total", "{time}", "Retried writes of the durability snapshot."),
    _counter("aof_flush_metadata_retry_failures_total", "{time}", "Retried writes of it that failed."),
    _counter("aof_flush_metadata_failures_total", "{time}", "Durability snapshots that could not be written."),
    _counter("aof_retention_retired_total", "{segment}", "Segments removed by retention.", "action"),
    _counter("aof_recovery_findings_total", "{file}", "Findings of recovery that a clean stop does not leave.", "kind"),
    _counter(
        "aof_records_lost_total", "{record}", "Records that a reader could not get because they are lost.", "kind"
    ),
    _counter("aof_upkeep_failed_total", "{time}", "Failed passes of the background maintenance."),
    _counter(
        "aof_tier_moves_total",
        "{segment}",
        "Moves of segments between tiers: packed, uploaded, fetched, hydrated, evicted.",
        "kind",
    ),
    _counter("aof_tiers_failed_total", "{time}", "Moves between tiers that failed and are retried."),
    _counter("aof_manifest_replay_corruption_events_total", "{file}", "Damaged chunks of manifest logs."),
    # Threads of all logs, exporters and receivers.
    _counter(
        "quiver.worker.deaths_total", "{thread}", "Background threads that died of an unexpected error.", "worker"
    ),
    # QWP.
    _gauge(
        "quiver.qwp.backlog_bytes",
        "By",
        "Bytes of frames that the server has not confirmed.",
        _of_slot("backlog_bytes"),
        "slot",
    ),
    _gauge(
        "quiver.qwp.backlog_frames",
        "{frame}",
        "Frames that the server has not confirmed.",
        _of_slot("backlog_frames"),
        "slot",
    ),
    _gauge(
        "quiver.qwp.oldest_unconfirmed_seconds",
        "s",
        "Age of the oldest unconfirmed row.",
        _of_slot("oldest_unconfirmed_s"),
        "slot",
    ),
    _gauge("quiver.qwp.slot_bytes", "By", "Bytes of a slot's segments.", _of_slot("allocated_bytes"), "slot"),
    _gauge("quiver.qwp.connected", "{connection}", "1 while connected.", _of_slot("connected"), "slot"),
    _counter("quiver.qwp.connect_attempts_total", "{time}", "Connection attempts."),
    _counter("quiver.qwp.reconnects_total", "{time}", "Reconnections."),
    _counter("quiver.qwp.frames_sent_total", "{frame}", "Frames sent, including repetitions."),
    _counter("quiver.qwp.frames_replayed_total", "{frame}", "Frames sent again."),
    _counter("quiver.qwp.server_errors_total", "{error}", "Errors reported by a server."),
    _counter("quiver.qwp.halts_total", "{time}", "Times that a sender or drainer halted."),
    _counter(
        "quiver.qwp.drainers_total", "{slot}", "Drained slots of other senders: started, and their outcomes.", "kind"
    ),
    _counter("quiver.qwp.backpressure_stalls_total", "{time}", "Times that a producer waited for space."),
    _counter("quiver.qwp.flushes_postponed_total", "{time}", "Automatic flushes postponed for lack of space."),
    _counter("quiver.qwp.frames_dropped_total", "{frame}", "Frames that a policy dropped."),
    _counter(
        "quiver.qwp.dead_letters_dropped_total",
        "{letter}",
        "Dead letters removed or not stored for lack of space.",
    ),
    _counter("quiver.qwp.frames_split_total", "{frame}", "Frames split because of the server's size limit."),
    _counter(
        "quiver.qwp.segments_trimmed_total", "{segment}", "Segments removed because they were completely confirmed."
    ),
    _counter(
        "quiver.qwp.segments_shortened_total", "{segment}", "Segments truncated because most of them was confirmed."
    ),
    _counter("quiver.qwp.spares_missing_total", "{segment}", "Segments created while a producer waited."),
    _counter("quiver.qwp.torn_tails_total", "{file}", "Torn tails of slots, found at open."),
    _counter("quiver.qwp.damaged_segments_total", "{segment}", "Damaged segments of slots."),
    _counter("quiver.qwp.errors_told_total", "{error}", "Errors passed to the handler."),
    _counter("quiver.qwp.errors_not_told_total", "{error}", "Errors not passed on because the inbox was full."),
)
"""Metrics of the other logs and of the packages they use. Each appears with its first event."""
