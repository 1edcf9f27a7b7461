"""`quiver topic rebuild-catalog`, and `verify` of a topic whose messages are partly in objects."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from cold_rig import append, expected, read, settings
from typer.testing import CliRunner

from quiver.cli import main as entry
from quiver.errors import SettingsError
from quiver.metadata import open_metadata
from quiver.testing.clock import ManualClock
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.reading import check
from quiver.topics.store import TopicStore

NAME = "default/orders"


@pytest.fixture
def cold(tmp_path):
    """A topic in a directory of objects, with lost metadata."""
    with TopicStore.open(
        tmp_path / "t", objects=str(tmp_path / "cold"), settings=settings(rotate=600), background=False
    ) as store:
        append(store.topic(NAME), 40)
        store.unload(NAME)
    (tmp_path / "t" / "metadata.db").unlink()
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(entry.build_app(), [str(one) for one in arguments])


def test_rebuild_catalog_makes_the_topic_readable_again(cold):
    """All of it is readable, and appends continue after it."""
    url = f"sqlite://{cold}/t/metadata.db"
    done = run("topic", "rebuild-catalog", cold / "cold", "--metadata", url, "--json")

    (report,) = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["topic"] == NAME
    assert report["objects"][-1]["end_offset"] == 39
    with TopicStore.open(
        cold / "t", objects=str(cold / "cold"), settings=settings(rotate=600), background=False
    ) as store:
        assert read(store.topic(NAME)) == expected(40)
        assert store.topic(NAME)._engine.wal.next_offset == 40


def test_rebuild_catalog_reports_damage_and_spares_owned_topics(cold):
    """Exit code 1 for damage and gaps; a topic with an owner is not changed."""
    url = f"sqlite://{cold}/other.db"
    objects = sorted((cold / "cold" / "storage/topics/default/orders/objects").iterdir())
    objects[0].unlink()
    data = bytearray(objects[1].read_bytes())
    data[-1] ^= 1
    objects[1].write_bytes(data)
    arguments = ("topic", "rebuild-catalog", str(cold / "cold"), "--metadata", url, "--topic", NAME)

    done = run(*arguments)
    assert done.exit_code == 1
    assert "default/orders" in done.stdout

    store = TopicStore.open(
        cold / "u", objects=str(cold / "cold"), metadata=url, settings=settings(), background=False
    )  # fmt: skip
    store.topic(NAME)
    done = run(*arguments)
    assert done.exit_code == 1
    assert "in use" in done.stderr
    store.close(timeout=0)
    done = run(*arguments)  # closed without a handover: the message has the end of the lease, and how to take the topic
    (wait,) = re.findall(r"its lease with --wait (\d+)", done.stderr)
    assert 0 < int(wait) <= 301  # the remaining lease; some seconds of it may have passed


def test_wrong_options_fail_with_exit_code_2(cold):
    """The message states the remedy."""
    done = run("topic", "rebuild-catalog", cold / "cold", "--metadata", "memory://", "--option", "region")

    assert done.exit_code == 2
    assert "key=value" in done.stderr


def test_messages_that_exist_only_in_objects_are_not_damage(tmp_path):
    """A topic that was moved away and back has a gap in its files. Without objects to fill it, it is a loss."""
    url = f"sqlite://{tmp_path}/here/metadata.db"
    chosen = settings(rotate=None, keep_minutes=None)
    for place, count in (("here", 4), ("there", 3), ("here", 2)):
        with TopicStore.open(
            tmp_path / place, objects=str(tmp_path / "cold"), metadata=url, settings=chosen, background=False
        ) as store:
            append(store.topic(NAME), count)
            store.unload(NAME)

    done = run("topic", "tail", tmp_path / "here", NAME, "--objects", tmp_path / "cold")
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == [str(offset) for offset in range(9)]
    done = run("topic", "tail", tmp_path / "here", NAME, "--from", 5)
    assert done.stderr == "messages 5 to 6 are in objects; give their location with --objects\n"
    done = run("topic", "tail", tmp_path / "there", NAME, "--objects", tmp_path / "cold", "--metadata", url)
    assert len(done.stdout.splitlines()) == 9

    def verify(*options, code):
        done = run("topic", "verify", tmp_path / "here", NAME, "--json", *options)
        assert done.exit_code == code, done.output
        (result,) = json.loads(done.stdout)
        assert (result["start_offset"], result["next_offset"]) == (0, 9)
        return result["objects"], [(one["kind"], one["reason"]) for one in result["findings"]]

    in_objects = [[0, 4], [4, 7], [7, 9]]
    there_only = [("in objects", "messages 4 to 6 are there only")]
    unread = [("not read", "the messages 4 to 6 are only in objects; use --objects to read them")]
    assert verify(code=3) == (in_objects, there_only + unread)
    assert verify("--metadata", url, code=3) == (in_objects, there_only + unread)
    assert verify("--objects", tmp_path / "cold", code=0) == (in_objects, there_only)
    assert verify("--root-prefix", "/other", code=1) == ([], [("damaged", "messages 4 to 6 are in no file")])

    with contextlib.closing(open_metadata(url)) as metadata:
        catalog = ObjectCatalog(metadata, root="/danube", topic=NAME, commits=metadata)
        catalog.withdraw([catalog.descriptors()[1]])
    assert verify(code=1)[1] == [("damaged", "messages 4 to 6 are in no file and in no object")]


def test_a_topic_with_objects_is_not_opened_without_them(cold):
    """Older messages would be skipped, and another owner's messages overwritten; the error states the remedy."""
    for options in ({}, {"settings": settings(rotate=600)}):
        with pytest.raises(SettingsError, match="open them with objects"):
            TopicStore.open(cold / "t", background=False, **options)
    done = run("topic", "produce", cold / "t", NAME, "x")
    assert done.exit_code != 0
    assert "open them with objects" in done.stderr


@pytest.mark.parametrize("lost", [("owner.id",), ("owner.id", "metadata.db"), ("metadata.db", f"{NAME}/uploader.ckpt")])
def test_a_lost_store_name_does_not_hide_the_objects(tmp_path, lost):
    """While one sign of objects is left, "earliest" never skips messages in objects; without any it may."""
    root = tmp_path / "t"
    chosen = settings(rotate=600)
    with TopicStore.open(root, objects=str(tmp_path / "cold"), settings=chosen, background=False) as store:
        append(store.topic(NAME), 40)
        store.flush()
        store.maintain()
        assert store.topic(NAME)._engine.wal.start_offset > 0
    for name in lost:
        (root / name).unlink()
    with pytest.raises(SettingsError, match="move away") as refused:
        TopicStore.open(root, background=False)
    for sign in str(refused.value).partition("move away ")[2].split(", "):
        for path in root.glob(sign.removeprefix(f"{root}/")):
            path.unlink()
    with TopicStore.open(root, background=False) as store:
        assert store.topics() == [NAME]


def test_commands_use_the_objects(tmp_path):
    """Messages in objects are printed or listed, and appends continue after them."""
    chosen = settings(rotate=600)
    with TopicStore.open(tmp_path / "t", objects=str(tmp_path / "cold"), settings=chosen, background=False) as store:
        append(store.topic(NAME), 40)
        store.flush()
        store.maintain()
        local = store.topic(NAME)._engine.wal.start_offset
    assert local > 0
    lines = [f"{number}\t{text.decode()}" for number, text in enumerate(expected(40))]
    tail = ("topic", "tail", tmp_path / "t", NAME)

    done = run(*tail)
    assert done.stdout.splitlines() == lines[local:]
    assert done.stderr == f"messages 0 to {local - 1} are in objects; give their location with --objects\n"
    for start in (0, 1, local - 1, local, 39):
        done = run(*tail, "--from", start, "--objects", tmp_path / "cold")
        assert (done.stdout.splitlines(), done.stderr) == (lines[start:], "")
    assert run(*tail, "--objects", tmp_path / "cold", "-n", 2).stdout.splitlines() == lines[:2]

    done = run("topic", "produce", tmp_path / "t", NAME, "x", "--objects", tmp_path / "cold", "--json")
    assert json.loads(done.stdout)["offsets"] == [40]
    assert run("topic", "repair", tmp_path / "t", "--objects", tmp_path / "cold").exit_code == 0


def test_verify_with_objects_reads_them(tmp_path):
    """Damage is reported with the key, byte and messages; without the option, objects are reported as unread."""
    here, cold = tmp_path / "here", tmp_path / "cold"
    with TopicStore.open(here, objects=str(cold), settings=settings(rotate=600), background=False) as store:
        append(store.topic(NAME), 40)
        store.topic(NAME).flush()
        store.maintain()

    assert "NOT ALL READ" in run("topic", "verify", here).stdout
    unread = run("topic", "verify", here, "--json")
    assert unread.exit_code == 3
    assert "use --objects to read them" in unread.stdout
    assert "offsets 0 to 39" in run("topic", "inspect", here, NAME).stdout
    sound = run("topic", "verify", here, NAME, "--objects", cold)
    assert (sound.exit_code, "intact" in sound.stdout) == (0, True)

    first, second = sorted(
        (cold / "storage/topics/default/orders/objects").glob("*"), key=lambda one: one.stat().st_mtime
    )[:2]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    second.unlink()
    done = run("topic", "verify", here, NAME, "--objects", cold, "--json")
    assert done.exit_code == 1
    (report,) = json.loads(done.stdout)
    damaged = {one["path"].rpartition("/")[2]: one["reason"] for one in report["findings"] if one["kind"] == "damaged"}
    assert damaged.keys() == {first.name, second.name}
    assert damaged[second.name].endswith("the object is missing")
    (report,) = json.loads(run("topic", "verify", here, NAME, "--json").stdout)
    assert (report["intact"], report["damaged"], report["unread"]) == (False, False, True)


def test_verify_without_metadata_does_not_call_a_topic_intact(tmp_path):
    """Unread objects may have older messages, even if the location of the objects is given."""
    here, cold, url = tmp_path / "here", tmp_path / "cold", f"sqlite://{tmp_path}/elsewhere.db"
    with TopicStore.open(
        here, objects=str(cold), metadata=url, settings=settings(rotate=600), background=False
    ) as store:
        append(store.topic(NAME), 40)
        store.topic(NAME).flush()
        store.maintain()
    done = run("topic", "verify", here, "--json")
    assert done.exit_code == 3
    assert "give it with --metadata" in done.stdout
    refused = run("topic", "verify", here, "--objects", cold)
    assert refused.exit_code == 2
    assert "--metadata" in refused.stderr
    assert run("topic", "verify", here, "--objects", cold, "--metadata", url).exit_code == 0


@pytest.mark.parametrize("at", [1, 2, 5])
def test_files_that_are_deleted_during_verify_are_not_damage(tmp_path, monkeypatch, at):
    """Their messages are in objects by then: the writer uploads and deletes files while the command runs."""
    seen = 0
    as_it_is = check._check_file

    def meanwhile(*arguments, **options):
        nonlocal seen
        seen += 1
        if seen == at:
            store.maintain()
        return as_it_is(*arguments, **options)

    monkeypatch.setattr(check, "_check_file", meanwhile)
    with TopicStore.open(
        tmp_path / "t", objects=str(tmp_path / "cold"), settings=settings(rotate=600), background=False
    ) as store:
        append(store.topic(NAME), 40)
        store.topic(NAME).flush()
        done = run("topic", "verify", tmp_path / "t", "--objects", tmp_path / "cold", "--json")
        assert store.topic(NAME)._engine.wal.start_offset > 0
    (report,) = json.loads(done.stdout)
    assert (done.exit_code, report["intact"]) == (0, True)
    assert (report["start_offset"], report["next_offset"]) == (0, 40)


def test_a_dead_machine_is_handed_over_manually(tmp_path):
    """Its unuploaded messages are uploaded, and another machine continues; superseded messages are appended again."""
    url, cold = f"sqlite://{tmp_path}/shared.db", tmp_path / "cold"
    place = ("--objects", cold, "--metadata", url)
    chosen = settings(rotate=600, keep_minutes=None)

    def opened(name):
        return TopicStore.open(
            tmp_path / name, objects=str(cold), metadata=url, settings=chosen, background=False, takeover_wait=9999,
            clock=ManualClock(),
        )  # fmt: skip

    def killed(name, count):
        store = opened(name)
        append(store.topic(NAME), count)
        store.flush()
        store.close(timeout=0)

    killed("one", 10)
    assert json.loads(run("topic", "upload", tmp_path / "one", *place, "--json").stdout) == [
        {"topic": NAME, "uploaded_offset": 10}
    ]
    killed("one", 5)
    assert "15" in run("topic", "unload", tmp_path / "one", NAME, *place).stdout
    with opened("two") as store:
        assert store.topic(NAME)._engine.wal.next_offset == 15

    killed("one", 5)  # messages 15 to 19 exist only here
    with opened("two") as store:  # and are superseded
        append(store.topic(NAME), 6)
    assert run("topic", "list", tmp_path / "one", "--metadata", url).exit_code == 0
    done = run("topic", "reappend", tmp_path / "one", *place, "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert sum(one["appended"] for one in found["files"]) == 5
    assert "none" in run("topic", "reappend", tmp_path / "one", *place).stdout
    assert "are in the topic again" in run("topic", "inspect", tmp_path / "one", NAME, "--metadata", url).stdout
    with opened("two") as store:
        assert read(store.topic(NAME)) == expected(21) + expected(20, 15)
    assert json.loads(run("topic", "delete", tmp_path / "two", NAME, *place, "--yes", "--json").stdout)["deleted"]
    assert [path for path in cold.rglob("*") if path.is_file()] == []
