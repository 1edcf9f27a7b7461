"""Requests like those of a busy service, made from a seed: two resources, two scopes each, ten attributes a record."""

from __future__ import annotations

import random

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

ROWS = 1_000


def log_request(seed: int, rows: int = ROWS) -> bytes:
    """An export request of *rows* log records, about 380 bytes each: mixed attributes, of which a few are nested."""
    dice = random.Random(seed)
    request = ExportLogsServiceRequest()
    for resource_number in range(2):
        resource = request.resource_logs.add()
        for number in range(6):
            pair = resource.resource.attributes.add(key=f"resource.attribute.{number}")
            pair.value.string_value = f"host-{resource_number}-{number}"
        for scope_number in range(2):
            scope = resource.scope_logs.add()
            scope.scope.name, scope.scope.version = f"library.{scope_number}", "1.4.2"
            for _ in range(rows // 4):
                _fill(scope.log_records.add(), dice)
    return request.SerializeToString()


def _fill(record, dice: random.Random) -> None:
    record.time_unix_nano = 1_700_000_000_000_000_000 + dice.randrange(10**12)
    record.observed_time_unix_nano = record.time_unix_nano + dice.randrange(10**6)
    record.severity_number, record.severity_text = dice.choice([(9, "INFO"), (9, "INFO"), (13, "WARN"), (17, "ERROR")])
    record.body.string_value = f"request {dice.randrange(10**6)} served in {dice.randrange(1000)} ms"
    if dice.random() < 0.7:
        record.trace_id, record.span_id, record.flags = dice.randbytes(16), dice.randbytes(8), 1
    for number in range(10):
        value = record.attributes.add(key=f"attribute.{number}").value
        chance = dice.random()
        if chance < 0.01:
            value.bytes_value = dice.randbytes(12)
        elif chance < 0.03:
            value.array_value.values.add(string_value=f"item {dice.randrange(100)}")
            value.array_value.values.add(int_value=dice.randrange(1000))
        elif chance < 0.04:
            value.kvlist_value.values.add(key="inner").value.int_value = dice.randrange(1000)
        elif number < 5:
            value.string_value = f"value-{dice.randrange(300)}"
        elif number < 8:
            value.int_value = dice.randrange(100_000)
        elif number == 8:
            value.double_value = dice.random()
        else:
            value.bool_value = dice.random() < 0.5
