"""Redaction removes every match from a batch, at any depth, and changes nothing else."""

import base64
import pickle

import pyarrow as pa
import pytest

from quiver.otap import TYPED_VALUE
from quiver.spark.processors.redaction import Redaction

ATTRIBUTES = pa.map_(pa.string(), TYPED_VALUE)
SCHEMA = pa.schema(
    [
        ("attributes", ATTRIBUTES),
        ("body", TYPED_VALUE),
        ("events", pa.list_(pa.struct([("attributes", ATTRIBUTES), ("count", pa.int64())]))),
        ("name", pa.string()),
        ("plain", pa.map_(pa.string(), pa.string())),
        ("numbers", pa.map_(pa.string(), pa.int64())),
    ]
)


def value(**fields):
    return {field.name: fields.get(field.name) for field in TYPED_VALUE}


def row(**columns):
    return {name: columns.get(name) for name in SCHEMA.names}


def batch(*rows):
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


REDACTION = Redaction(["pass", "^token$"], [r"\w+@[\w.]+"], replacement="****", columns=["name"])


def redacted(*rows):
    made = REDACTION.batch(batch(*rows))
    made.validate(full=True)
    assert made.schema == SCHEMA
    return made.to_pylist()


def test_values_of_matching_keys_are_replaced_completely():
    """Of any type; a key matches if the pattern is found in it."""
    [made] = redacted(
        row(
            attributes=[
                ("db.password", value(string_value="x")),
                ("token", value(int_value=7)),
                ("tokens", value(int_value=7)),
                ("passport", None),
            ],
            plain=[("password", "x"), ("user", "y")],
            numbers=[("password", 1), ("n", 2)],
        )
    )
    assert made["attributes"] == [
        ("db.password", value(string_value="****")),
        ("token", value(string_value="****")),
        ("tokens", value(int_value=7)),
        ("passport", None),
    ]
    assert made["plain"] == [("password", "****"), ("user", "y")]
    assert made["numbers"] == [("password", None), ("n", 2)]


def test_matches_in_strings_are_replaced():
    """In attributes, bodies, events and the selected columns only."""
    [made] = redacted(
        row(
            attributes=[("mail", value(string_value="from a@b.de to c@d.de"))],
            body=value(string_value="a@b.de"),
            events=[
                {"attributes": [("m", value(string_value="a@b.de"))], "count": 1},
                {"attributes": None, "count": 2},
            ],
            name="a@b.de",
        )
    )
    assert made["attributes"] == [("mail", value(string_value="from **** to ****"))]
    assert made["body"] == value(string_value="****")
    assert made["events"][0] == {"attributes": [("m", value(string_value="****"))], "count": 1}
    assert made["events"][1] == {"attributes": None, "count": 2}
    assert made["name"] == "****"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"from a@b.de", b"from ****"),
        (b"\xff\xfe a@b.de \xff", b"\xff\xfe **** \xff"),
        ("ä@b.de".encode(), "ä@b.de".encode()),
        (b"", b""),
        (None, None),
    ],
)
def test_matches_in_bytes_are_replaced(before, after):
    """In text and in binary data, in typed values, maps and selected columns."""
    schema = pa.schema([("body", TYPED_VALUE), ("raw", pa.binary()), ("other", pa.binary()),
                        ("plain", pa.map_(pa.string(), pa.binary()))])  # fmt: skip
    redaction = Redaction(["pass"], [r"\w+@[\w.]+"], replacement="****", columns=["raw"])
    beside = {"body": value(bytes_value=b"\xff"), "raw": b"b@c.de", "other": None, "plain": [("password", b"x")]}
    rows = [{"body": value(bytes_value=before), "raw": before, "other": before, "plain": [("k", before)]}, beside]
    made = redaction.batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    made.validate(full=True)
    assert made.to_pylist() == [
        {"body": value(bytes_value=after), "raw": after, "other": before, "plain": [("k", after)]},
        {**beside, "raw": b"****", "plain": [("password", b"****")]},
    ]


def test_patterns_match_characters_of_text_in_bytes():
    """They never match a part of one, even if another value of the column is binary."""
    redaction = Redaction([], ["[äö]"], replacement="-")
    rows = [row(body=value(bytes_value="aäbö".encode())), row(body=value(bytes_value=b"\xe4"))]
    made = redaction.batch(batch(*rows)).to_pylist()
    assert [one["body"]["bytes_value"] for one in made] == [b"a-b-", b"\xe4"]


def test_json_is_redacted_at_any_depth():
    """Both keys and strings; other values keep their type."""
    text = '{"password":{"deep":1},"list":["a@b.de",1,2.5,null,true,{"k":"z","token":[1]}],"ü":"ß"}'
    rows = redacted(row(body=value(json_value=text)), row(body=value(json_value='"a@b.de"')), row())
    assert rows[0]["body"]["json_value"] == (
        '{"password":"****","list":["****",1,2.5,null,true,{"k":"z","token":"****"}],"ü":"ß"}'
    )
    assert rows[1]["body"]["json_value"] == '"****"'
    hidden = base64.b64encode(b"\xff a@b.de").decode()
    [coded] = redacted(row(body=value(json_value=f'{{"b":"{hidden}","c":"YWJj","d":"abcd"}}')))
    expected = base64.b64encode(b"\xff ****").decode()
    assert coded["body"]["json_value"] == f'{{"b":"{expected}","c":"YWJj","d":"abcd"}}'
    [broken] = redacted(row(body=value(json_value="no json a@b.de")))
    assert broken["body"]["json_value"] == "no json ****"


def test_empty_values_are_unchanged():
    """Null and empty remain distinct, and a slice is redacted like a batch."""
    rows = [
        row(attributes=[("password", value(string_value="secret")), ("x", value(bool_value=True))], name="a@b.de"),
        row(),
        row(attributes=[], body=value(), events=[], name="", plain=[]),
        row(attributes=[("y", value(double_value=1.5))], body=value(bytes_value=b"a b")),
    ]
    complete = redacted(*rows)
    assert complete[1:] == rows[1:]
    made = REDACTION.batch(batch(*rows).slice(1, 2))
    assert made.to_pylist() == rows[1:3]
    assert REDACTION.batch(batch().slice(0, 0)).num_rows == 0


def test_redaction_can_be_pickled():
    """Spark sends it to tasks, where it is applied to one batch after another."""
    task = pickle.loads(pickle.dumps(REDACTION))
    made = list(task([batch(row(name="a@b.de")), batch(row(name="x"))]))
    assert [one.column("name").to_pylist() for one in made] == [["****"], ["x"]]


def test_keys_and_values_are_independent():
    """With keys only, strings are not changed; with values only, keys are not."""
    keys = Redaction(["password"], [], replacement="-")
    made = keys.batch(
        batch(row(attributes=[("password", value(int_value=1))], body=value(json_value='{"password":1}')))
    )
    assert made.to_pylist()[0]["attributes"] == [("password", value(string_value="-"))]
    assert made.to_pylist()[0]["body"]["json_value"] == '{"password":"-"}'
    values = Redaction([], ["b+"], replacement="-")
    made = values.batch(batch(row(attributes=[("bb", value(string_value="abba"))])))
    assert made.to_pylist()[0]["attributes"] == [("bb", value(string_value="a-a"))]


def test_a_selected_column_is_redacted_at_any_depth():
    """The setting `name` applies to the name of a span and to the names of its events; null remains null."""
    event = pa.struct([("name", pa.string()), ("attributes", SCHEMA.field("attributes").type)])
    schema = pa.schema([("name", pa.string()), ("events", pa.list_(event))])
    rows = [
        {"name": "a@b.c", "events": [{"name": "to a@b.c", "attributes": None}, None]},
        {"name": None, "events": None},
    ]
    made = REDACTION.batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    made.validate(full=True)
    assert made.to_pylist() == [
        {"name": "****", "events": [{"name": "to ****", "attributes": None}, None]},
        {"name": None, "events": None},
    ]
