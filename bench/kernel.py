"""
The functions of the compiled kernel beside their twins in Python: CPU of each, alternating, and the factor.

    .venv/bin/python bench/kernel.py [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from time import process_time

import numpy as np
import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.aof.format import record
from quiver.aof.format.record import RecordScan, encode_record
from quiver.otap.any_values import KINDS, AnyValues, key_values_in_kernel, key_values_in_python
from quiver.otap.request_times import times_by_protobuf, times_in_kernel
from quiver.otap.wire_schema import narrow_handler
from quiver.primitives.kernel import KERNEL, describe_kernel
from quiver.qwp.row_checks import row_check_in_python
from quiver.qwp.tables import objects_in_kernel, objects_in_python
from quiver.store.encode import EncodedBundle, SlotEncoder
from quiver.store.entries import ENTRY_OVERHEAD, write_entry_in_python
from qwp import some_rows
from telemetry import log_request


def compared(label: str, unit: str, count: int, twins: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Print the CPU that each twin takes for one of *count* units: median, lowest and highest round."""
    seconds: dict[str, list[float]] = {name: [] for name in twins}
    for _ in range(rounds):
        for name, run in twins.items():
            started = process_time()
            run()
            seconds[name].append((process_time() - started) / count * 1e6)
    for name, found in seconds.items():
        print(f"{label}, {name}: {statistics.median(found):.3f} µs per {unit} ({min(found):.3f}-{max(found):.3f})")
    python, compiled = map(statistics.median, seconds.values())
    print(f"{label}: factor {python / compiled:.1f}")


def record_scans(rounds: int) -> None:
    """The scan of AOF2 records."""
    for size, count in ((128, 200_000), (1024, 60_000), (65536, 1_500)):
        some = b"".join(encode_record(bytes([number]) * size, timestamp=number) for number in range(100))
        data = memoryview(some * (count // 100))

        def scan(step: Callable[[RecordScan, memoryview, int], bool], data: memoryview = data) -> None:
            found = RecordScan(0, 0)
            while step(found, data, len(data)):
                pass

        twins = {
            "Python": lambda scan=scan: scan(record._scan_batch_in_python),  # noqa: SLF001
            "compiled": lambda scan=scan: scan(record._scan_batch_in_kernel),  # noqa: SLF001
        }
        compared(f"record scan, {size} bytes", "record", count, twins, rounds)


def entries(rounds: int) -> None:
    """The layout of a log entry with its checksum."""
    for rows in (10, 100, 1_000):
        encoded = SlotEncoder().encode({30: pa.record_batch({"time": range(rows), "body": ["some text"] * rows})})
        (slot,) = encoded.slots
        message = slot.message
        region = memoryview(bytearray(encoded.nbytes + ENTRY_OVERHEAD)).cast("b")

        def lay_out(
            write: Callable[..., None],
            encoded: EncodedBundle = encoded,
            region: memoryview = region,
            message: object = message,
        ) -> None:
            (slot,) = encoded.slots
            for number in range(20_000):
                slot.message = message
                write(region, 1, number, encoded.bitmap, encoded.slots)

        twins = {
            "Python": lambda lay_out=lay_out: lay_out(write_entry_in_python),
            "compiled": lambda lay_out=lay_out: lay_out(KERNEL.write_entry),
        }
        compared(f"log entry, {rows} rows", "entry", 20_000, twins, rounds)


def attributes(rounds: int) -> None:
    """Keys and values of attributes, as columns of each type."""
    requests = [log_request(seed) for seed in range(16)]
    batch = narrow_handler("logs").list_to_record_batch(requests)
    records = batch.column(0).values.field("scope_logs").values.field("log_records").values
    lists = records.field("attributes")
    few = pa.array(lists.slice(0, 10).flatten().to_pylist(), pa.binary())
    for label, messages in (("10 records", few), ("16,000 records", lists.values)):
        repeats = max(1, 200_000 // len(messages))

        def decode(
            split: Callable[[pa.Array], tuple[pa.Array, AnyValues]],
            messages: pa.Array = messages,
            repeats: int = repeats,
        ) -> None:
            for _ in range(repeats):
                _, values = split(messages)
                for arm in KINDS:
                    values.field(arm)

        twins = {
            "Python": lambda decode=decode: decode(key_values_in_python),
            "compiled": lambda decode=decode: decode(key_values_in_kernel),
        }
        compared(f"attributes of {label}", "record", len(messages) * repeats // 10, twins, rounds)


def event_times(rounds: int) -> None:
    """The range of event times in a request, which a seal records."""
    for count in (1, 10, 100, 250):
        request = ExportLogsServiceRequest.FromString(log_request(0))
        records = request.resource_logs[0].scope_logs[0].log_records
        del request.resource_logs[1:], request.resource_logs[0].scope_logs[1:], records[count:]
        requests = pa.array([request.SerializeToString()])
        repeats = 20_000 // count

        def read(
            times: Callable[[pa.Array, str], object], requests: pa.Array = requests, repeats: int = repeats
        ) -> None:
            for _ in range(repeats):
                times(requests, "logs")

        twins = {
            "protobuf": lambda read=read: read(times_by_protobuf),
            "compiled": lambda read=read: read(times_in_kernel),
        }
        compared(f"event times of {len(records)} records, {requests.nbytes} bytes", "request", repeats, twins, rounds)


def text_objects(rounds: int) -> None:
    """A column of str objects of a data frame."""
    for label, distinct in (("3 distinct", 3), ("all distinct", 1_000_000)):
        texts = [f"venue {number}" for number in range(distinct)]
        values = np.array([texts[number % distinct] for number in range(1_000_000)], object)
        twins = {
            "Python": lambda values=values: objects_in_python(values),
            "compiled": lambda values=values: objects_in_kernel(values),
        }
        compared(f"text objects, {label}", "text", len(values), twins, rounds)


def rows(rounds: int) -> None:
    """A row of the QWP sender that has the names and types of the previous one."""
    some = some_rows(50_000)
    symbols, columns, at = some[0]
    types = tuple(map(type, (*symbols.values(), *columns.values(), at)))
    whole_numbers, texts = (sum(1 << at for at, kind in enumerate(types) if kind is wanted) for wanted in (int, str))

    def check(make: Callable[..., Callable[..., int]]) -> None:
        one = make(len(symbols), (*symbols, *columns), types, whole_numbers, texts, 100)
        buffered: list[object] = []
        for row in some:
            one(*row, 1 << 20, buffered)

    twins = {"Python": lambda: check(row_check_in_python), "compiled": lambda: check(KERNEL.row_check)}
    compared(f"row of {len(types)} values", "row", len(some), twins, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the compiled kernel with its twins.")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if KERNEL is None:
        print(describe_kernel(), file=sys.stderr)
        return 1
    record_scans(options.rounds)
    entries(options.rounds)
    attributes(options.rounds)
    event_times(options.rounds)
    text_objects(options.rounds)
    rows(options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
