"""The metrics of exporters: every exporter of a pipeline has those without `signal`, in whichever process it runs."""

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
        "OTLP requests sent on, by what became of them: confirmed, retried, refused, divided because too large.",
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
        "Rows of them: records, spans and points, or what processors made of these.",
        "exporter",
    ),
    counter(
        "quiver.exporter.bytes_total",
        "By",
        "Bytes of them: before compression where sent, else as written.",
        "exporter",
    ),
    counter(
        "quiver.exporter.failures_total",
        "{attempt}",
        "Attempts to deliver that failed: unavailable, denied, refused, data, processor, storage, other.",
        "exporter",
        "type",
    ),
    gauge(
        "quiver.exporter.last_success_timestamp",
        "s",
        "When it last delivered something, in seconds since 1970; 0: never.",
        _of_exporter("last_success_s"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.retry_queue_bundles",
        "{bundle}",
        "Bundles that failed and wait to be tried again.",
        _of_exporter("retry_queue_bundles"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.dead_letters",
        "{bundle}",
        "Dead letters on the disk.",
        _of_exporter("dead_letters"),
        "exporter",
    ),
    gauge(
        "quiver.exporter.behind_seconds",
        "s",
        "Age of the oldest bundle that it has not confirmed; 0 when there is none.",
        _of_exporter("behind_s"),
        "exporter",
    ),
    counter(
        "quiver.exporter.rejected_items_total",
        "{item}",
        "Records, spans and points that a far side did not take of a request that it confirmed.",
        "exporter",
        "signal",
    ),
    counter(
        "quiver.exporter.left_out_total",
        "{part}",
        "Parts of OTLP requests that an OTAP exporter sent them without: OTAP has no place for them, or settings leave "
        "them out.",
        "exporter",
        "signal",
        "what",
    ),
    counter(
        "quiver.exporter.given_up_total",
        "{bundle}",
        "Bundles that an exporter gave up, by what became of them: dead_letter, drop; halt counts a stop.",
        "exporter",
        "how",
    ),
    counter(
        "quiver.exporter.replayed_total",
        "{bundle}",
        "Dead letters that were tried again by themselves: delivered, failed, refused.",
        "exporter",
        "outcome",
    ),
    counter(
        "quiver.exporter.dead_letters_dropped_total",
        "{bundle}",
        "Dead letters that their size cap or their age dropped.",
        "exporter",
        "reason",
    ),
)
