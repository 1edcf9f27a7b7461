"""
`quiver topic rebuild-catalogue` from the command line.
"""

from __future__ import annotations

import json

import pytest
from cold_rig import append, expected, read, settings
from typer.testing import CliRunner

from quiver.cli import main as entry
from quiver.topics.store import TopicStore

NAME = "default/orders"


@pytest.fixture
def cold(tmp_path):
    """A topic in a directory of objects, and metadata that is lost."""
    with TopicStore.open(
        tmp_path / "t", objects=str(tmp_path / "cold"), settings=settings(rotate=600), background=False
    ) as store:
        append(store.topic(NAME), 40)
        store.unload(NAME)
    (tmp_path / "t" / "metadata.db").unlink()
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(entry.build_app(), [str(one) for one in arguments])


def test_the_topic_is_readable_again(cold):
    """All of it, and it goes on behind it."""
    url = f"sqlite://{cold}/t/metadata.db"
    done = run("topic", "rebuild-catalogue", cold / "cold", "--metadata", url, "--json")

    (report,) = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["topic"] == NAME
    assert report["objects"][-1]["end_offset"] == 39
    with TopicStore.open(
        cold / "t", objects=str(cold / "cold"), settings=settings(rotate=600), background=False
    ) as store:
        assert read(store.topic(NAME)) == expected(40)
        assert store.topic(NAME).wal.next_offset == 40


def test_damage_is_told_and_owners_are_left_alone(cold):
    """Exit code 1 for damage and holes; a topic that somebody owns is not touched."""
    url = f"sqlite://{cold}/other.db"
    objects = sorted((cold / "cold" / "storage/topics/default/orders/objects").iterdir())
    objects[0].unlink()
    data = bytearray(objects[1].read_bytes())
    data[-1] ^= 1
    objects[1].write_bytes(data)
    arguments = ("topic", "rebuild-catalogue", str(cold / "cold"), "--metadata", url, "--topic", NAME)

    done = run(*arguments)
    assert done.exit_code == 1
    assert "default/orders" in done.stdout

    with TopicStore.open(
        cold / "u", objects=str(cold / "cold"), metadata=url, settings=settings(), background=False
    ) as store:
        store.topic(NAME)
        done = run(*arguments)
        assert done.exit_code == 1
        assert "in use" in done.stderr


def test_wrong_options_are_wrong_use(cold):
    """Exit code 2, and what to write instead."""
    done = run("topic", "rebuild-catalogue", cold / "cold", "--metadata", "memory://", "--option", "region")

    assert done.exit_code == 2
    assert "key=value" in done.stderr
