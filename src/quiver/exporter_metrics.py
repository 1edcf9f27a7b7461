"""The metrics of exporters. Every exporter of a pipeline has those without `signal`, in any process."""

from __future__ import annotations

from collections.abc import Callable

from quiver.metric import Figures, Metric, Reading, counter, gauge

__all__ = ["EXPORTER_METRICS"]


def _of_exporter(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for exporter, one in figures["exporters"].items():
            yield one[key], {"exporter": exporter}

    return read


EXPORTER_METRICS: tuple[Metric, ...] = (
    counter(
        "quiver.exporter.requests_total",
        "{request}",
        "OTLP requests sent, by outcome: confirmed, retried, refused, divided because too large.",
        "exporter",
        "signal",
        "outcome",
        "reason",
    ),
    counter(
        "quiver.exporter.batches_total", "{batch}", "Batches delivered: requests, or batches of a query.", "exporter"
    ),
    counter(
        "quiver.exporter.rows_total",
        "{row}",
        "Rows of them: records, spans and points, or the rows that processors returned.",
        "exporter",
    ),
    counter(
        "quiver.exporter.bytes_total",
        "By",
        "Bytes of them: before compression if sent, as written otherwise.",
        "exporter",
    ),
    counter(
        "quiver.exporter.failures_total",
        "{attempt}",
        "Failed attempts to deliver: unavailable, denied, refused, data, processor, storage, other.",
        "exporter",
        "type",
    ),
    gauge(
        "quiver.exporter.last_success_timestamp",
        "s",
        "Time of the last delivery, in seconds since 1970; 0: never.",
        _of_exporter("last_success_s"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.retry_queue_bundles",
        "{bundle}",
        "Bundles in the retry set.",
        _of_exporter("retry_queue_bundles"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.dead_letters",
        "{bundle}",
        "Dead letters on disk.",
        _of_exporter("dead_letters"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.behind_seconds",
        "s",
        "Age of the oldest bundle that it has not confirmed; 0 if there is none.",
        _of_exporter("behind_s"),
        "exporter",
    ),
    counter(
        "quiver.exporter.rejected_items_total",
        "{item}",
        "Records, spans and points that the destination rejected in requests that it confirmed.",
        "exporter",
        "signal",
    ),
    counter(
        "quiver.exporter.left_out_total",
        "{part}",
        "Parts of OTLP requests that an OTAP exporter left out: OTAP cannot represent them, or settings exclude them.",
        "exporter",
        "signal",
        "what",
    ),
    counter(
        "quiver.exporter.skipped_bundles_total",
        "{bundle}",
        "Bundles, or parts of them, that were acknowledged without being sent: `signals` excludes theirs.",
        "exporter",
        "signal",
    ),
    counter(
        "quiver.exporter.given_up_total",
        "{bundle}",
        "Bundles that were not delivered, by outcome: dead_letter, drop; halt counts a stop.",
        "exporter",
        "how",
    ),
    counter(
        "quiver.exporter.replayed_total",
        "{bundle}",
        "Automatic replays of dead letters: delivered, failed, refused.",
        "exporter",
        "outcome",
    ),
    counter(
        "quiver.exporter.dead_letters_dropped_total",
        "{bundle}",
        "Dead letters dropped by their size cap or maximum age.",
        "exporter",
        "reason",
    ),
)
