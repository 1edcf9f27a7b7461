"""Rows, commands and tickets for the tests of Flight."""

import json

import pyarrow as pa
import pyarrow.flight as fl


def rows(first, count=3, **more):
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64()), **more})


def command(**keys):
    return fl.FlightDescriptor.for_command(json.dumps(keys))


def ticket(**keys):
    return fl.Ticket(json.dumps(keys))
