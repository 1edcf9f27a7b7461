"""Rows, commands and tickets for the tests of Flight."""

import contextlib
import json
import threading

import pyarrow as pa
import pyarrow.flight as fl


def rows(first, count=3, **more):
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64()), **more})


def command(**keys):
    return fl.FlightDescriptor.for_command(json.dumps(keys))


def ticket(**keys):
    return fl.Ticket(json.dumps(keys))


def put(client, descriptor, *batches, sequences=None):
    """Put *batches*, and return the acknowledgements, and the error or None."""
    writer, reader = client.do_put(descriptor, batches[0].schema, fl.FlightCallOptions(timeout=60))
    acks, errors = [], []

    def read():
        try:
            while (ack := reader.read()) is not None:
                acks.append(json.loads(ack.to_pybytes()))
        except (pa.ArrowException, OSError) as failed:
            errors.append(failed)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for number, batch in enumerate(batches):
            if sequences is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, json.dumps({"sequence": sequences[number]}).encode())
        writer.done_writing()
    except (pa.ArrowException, OSError) as failed:
        errors.append(failed)
    reading.join(60)
    try:
        writer.close()
    except (pa.ArrowException, OSError) as failed:
        errors.append(failed)
    return acks, errors[-1] if errors else None


class Consumer:
    """A client of a subscription."""

    def __init__(self, client, **keys):
        named = {} if "topic" in keys else {"subscriber": "exporter"}
        subscription = command(**named | {"start": "earliest"} | keys)
        self.writer, self.reader = client.do_exchange(subscription, fl.FlightCallOptions(timeout=20))
        self.writer.begin(pa.schema([]))

    def next(self):
        """Return metadata and rows of the next delivery."""
        chunk = self.reader.read_chunk()
        return json.loads(chunk.app_metadata.to_pybytes()), chunk.data

    def answer(self, **keys):
        self.writer.write_metadata(json.dumps(keys).encode())

    def rest(self):
        """Acknowledge everything until the end. Return the addresses."""
        found = []
        while True:
            try:
                metadata, _ = self.next()
            except StopIteration:
                return found
            found.append(metadata["address"])
            self.answer(ack=[metadata["address"]])


def close(writer):
    """Close a stream that may have failed."""
    with contextlib.suppress(pa.ArrowException, OSError):
        writer.close()
