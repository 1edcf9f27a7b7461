"""Commands reach an S3 server over plain HTTP, by environment variables or by `--option`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import quiver
from quiver.aof import AofConfig, AofManager, TierConfig
from quiver.cli.main import build_app
from quiver.errors import SettingsError
from quiver.objects import ObjectLocation, open_objects
from quiver.settings import Settings
from s3_server import S3Server

LOG = "orders"
TOPIC = "default/orders"

Reach = Callable[[], list[str]]


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(params=["environment", "options"])
def reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> Reach:
    """Return a function that returns the arguments to add to the URL; with environment variables, none."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    if request.param == "environment":
        set_environment(monkeypatch, s3_server)
        return list
    monkeypatch.setenv("MY_SECRET", s3_server.secret_key)
    options = s3_server.options(secret_key="${MY_SECRET}")
    return lambda: [word for key, value in options.items() for word in ("--option", f"{key}={value}")]


def set_environment(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)


def test_every_command_with_a_url_accepts_options():
    """Also commands that are added later: without `--option`, they could not reach a server over plain HTTP."""
    checked = 0
    for words, command in commands(typer.main.get_command(build_app())):
        taken = {option for parameter in command.params for option in parameter.opts}
        if taken & {"--objects", "--cold", "objects"}:
            assert "--option" in taken, words
            checked += 1
        if "--metadata" in taken:
            assert {"--metadata-option", "--namespace", "--root-prefix"} <= taken, words
    assert checked > 10


def commands(command, *words):
    below = getattr(command, "commands", None)
    if below is None:
        yield " ".join(words), command
        return
    for name, one in below.items():
        yield from commands(one, *words, name)


def test_topic_commands_reach_the_server(reach: Reach, s3_server: S3Server, tmp_path: Path):
    """Messages are appended, verified and read; the catalog is rebuilt, and then another message is appended."""
    place = ("--objects", s3_server.url())
    run("topic", "produce", tmp_path, TOPIC, "one", "two", *place, *reach())
    assert "intact" in run("topic", "verify", tmp_path, *place, *reach())
    run("topic", "repair", tmp_path, *place, *reach())
    lines = run("topic", "tail", tmp_path, TOPIC, "--json", *place, *reach()).splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["one", "two"]
    url = f"sqlite://{tmp_path}/other.db"
    run("topic", "rebuild-catalog", place[1], "--metadata", url, *reach())
    run("topic", "produce", tmp_path, TOPIC, "three", *place, *reach())


def test_aof_commands_reach_the_server(reach: Reach, s3_server: S3Server, tmp_path: Path):
    """Segments are uploaded to the bucket, read from it, and downloaded again."""
    root = str(tmp_path / "aof")
    with AofManager.open(root, AofConfig(), background=False) as manager:
        log = manager.log(LOG)
        for text in (b"one", b"two", b"three"):
            log.append_record(text)
            log.force_rollover(timeout=5)
    place = ("--objects", s3_server.url(), *reach())
    run("aof", "evict", root, 0, *place)
    run("aof", "seal", root, *place)
    (listed,) = run("aof", "segments", "list", root, "--json").splitlines()
    assert json.loads(listed)["segments"][0]["object"]
    lines = run("aof", "tail", root, "--json", *place).splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["one", "two", "three"]
    run("aof", "hydrate", root, 0, *place)
    run("aof", "manifest", "check", root, "--repair", *place)
    assert json.loads(run("aof", "segments", "delete", root, 0, "--force", "--json", *place))["objects_left"] == 0


def test_store_commands_reach_the_server(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, tmp_path: Path):
    """The list of a store contains only the URL; the environment configures the access for each command."""
    set_environment(monkeypatch, s3_server)
    settings = Settings(delete_grace_s=0.0, cold_objects=ObjectLocation.from_url(s3_server.url()), cold_local_bytes=0)
    root = tmp_path / "buffer"
    with quiver.open(root, settings, background=False) as store:
        store.ingest(quiver.Bundle({"logs": pa.record_batch({"id": [1, 2, 3]})}))
        store.seal()
        for _ in range(2):
            store.maintain()
    assert not list((root / "segments").glob("*.qseg"))
    run("verify", root)
    run("stats", root)
    run("export", root, "--slot", "logs", "--to", tmp_path / "logs.jsonl")
    assert len((tmp_path / "logs.jsonl").read_text().splitlines()) == 3
    run("snapshot", root, tmp_path / "copy", "--check")
    run("repair", root)


def test_environment_variables_apply_to_programs(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, tmp_path: Path):
    """They configure the library as well as the commands."""
    set_environment(monkeypatch, s3_server)
    tiers = TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=s3_server.url())
    with AofManager.open(str(tmp_path), AofConfig(tiers=tiers), background=False) as manager:
        log = manager.log(LOG)
        for text in (b"one", b"two"):
            log.append_record(text)
            log.force_rollover(timeout=5)
        manager.maintain()
        assert "uploaded_to_tier2" in log.tiers.snapshot().residency.values()


def test_options_override_the_environment(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server):
    """Explicit options take precedence."""
    set_environment(monkeypatch, s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-key")
    open_objects(ObjectLocation.from_url(s3_server.url(), s3_server.options())).close()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"AWS_ALLOW_HTTP": "false"}, "plain http needs allow_http=true, or AWS_ALLOW_HTTP=true"),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "check endpoint, region and keys"),
        ({"AWS_ALLOW_HTTP": "maybe"}, "failed to parse"),
    ],
)
def test_invalid_environment_variables_are_refused(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, changed, says):
    """The settings error is raised immediately, because a retry would not help."""
    set_environment(monkeypatch, s3_server)
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=says):
        open_objects(s3_server.url())


def test_options_without_a_url_are_refused(tmp_path: Path):
    """They would have no effect."""
    (tmp_path / TOPIC).mkdir(parents=True)
    result = CliRunner().invoke(build_app(), ["topic", "tail", str(tmp_path), TOPIC, "--option", "region=x"])
    assert result.exit_code == 2
    assert "--objects" in result.stderr
