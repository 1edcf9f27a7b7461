"""Each sub-command prints a table or JSON, and reports success or failure by its exit code."""

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

import quiver
from quiver.cli import main as entry
from quiver.cli.demo import MARKER
from quiver.pipeline.processes.extras import missing_extra

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "otlp-to-parquet.yaml"


def call(*arguments):
    result = CliRunner().invoke(entry.build_app(), [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def test_help_names_every_command_and_imports_nothing_heavy():
    """`quiver --help` works without Spark, gRPC and the SDK, and does not wait for them."""
    assert all(name in call("--help").output for name in ("run", "demo", "inspect", "verify", "stats"))
    heavy = "('pyspark', 'grpc', 'aiohttp', 'opentelemetry', 'pydantic', 'yaml', 'pandas')"
    code = "import sys; from quiver.cli.main import build_app; build_app()\n"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_version_prints_the_version():
    """`quiver --version` prints it and exits; after a sub-command, the option is an error."""
    assert re.fullmatch(r"quiver \S.* \(Python 3\.[\d.]+\S*, (no )?compiled kernel.*\)\n", call("--version").output)
    assert call("stats", "--version").exit_code == 2


def test_the_module_runs_the_command():
    """`python -m quiver` is the same as `quiver`."""
    done = subprocess.run([sys.executable, "-m", "quiver", "--help"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("Usage: python -m quiver [OPTIONS] COMMAND")


@pytest.mark.parametrize("arguments", [["stats"], ["verify", "a", "b"], ["nothing"], ["inspect", "--rows", "-1", "x"]])
def test_wrong_use_exits_with_2(arguments):
    """A missing argument, one too many, an unknown command, a value out of range."""
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["stats", "verify", "inspect"])
def test_a_missing_path_is_a_usage_error(command, tmp_path):
    """The message is one sentence with the path."""
    result = call(command, tmp_path / "nothing")

    assert result.exit_code == 2
    assert str(tmp_path / "nothing") in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_a_directory_without_a_store_is_a_usage_error(command, tmp_path):
    """The message names the missing part."""
    result = call(command, tmp_path)

    assert result.exit_code == 2
    assert "is not a store" in result.output


def test_a_missing_extra_is_reported_in_one_sentence(monkeypatch, capsys):
    """The sentence names the extra to install; a missing module that belongs to no extra is a bug, and is raised."""
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(entry, "build_app", entry.build_app.__wrapped__)  # tests keep the application that was built
    with pytest.raises(SystemExit) as caught:
        entry.main()

    assert caught.value.code == 2
    assert capsys.readouterr().err == 'quiver: typer is not installed; run: pip install "arrow-quiver[cli]"\n'
    for module, extra in (("pyspark.sql", "spark"), ("obstore", "objects"), ("httpx", "etcd")):
        assert f'"arrow-quiver[{extra}]"' in missing_extra(ModuleNotFoundError("x", name=module))
    with pytest.raises(ModuleNotFoundError):
        missing_extra(ModuleNotFoundError("x", name="quiver.nothing"))


def test_a_missing_extra_inside_a_command_is_reported_in_one_sentence(monkeypatch, tmp_path):
    """`demo` without the SDK names the extra to install, and creates nothing."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    result = call("demo", tmp_path / "d")

    assert result.exit_code == 2
    assert "pip install" in result.output
    assert not (tmp_path / "d").exists()


def test_stats_counts_segments_log_and_lag(made_store):
    """`fast` is five bundles ahead of `slow`."""
    result = call("stats", made_store, "--json")
    found = json.loads(result.output)
    lags = {one["subscriber"]: one["lag_bundles"] for one in found["subscribers"]}

    assert result.exit_code == 0
    assert found["bundles"] == 12
    assert lags == {"fast": 7, "slow": 12}
    assert found["segments"] > 1
    assert found["wal_bytes"] > 0
    assert found["oldest_age_s"] > 0
    table = call("stats", made_store).output
    assert "slow" in table
    assert "12" in table


def test_verify_finds_no_damage_in_a_valid_store(made_store):
    """Bundles are counted in segments and in the log."""
    result = call("verify", made_store, "--json")
    found = json.loads(result.output)

    assert result.exit_code == 0
    assert (found["damaged"], found["findings"], found["segment_bundles"]) == (False, [], 12)
    assert found["log_entries"] >= 3
    assert "nothing is damaged" in call("verify", made_store).output


def test_inspect_of_a_directory_lists_its_files(made_store):
    """One line per file, with its kind."""
    result = call("inspect", made_store, "--json")
    kinds = {one["kind"] for one in json.loads(result.output)}

    assert result.exit_code == 0
    assert {"wal", "segment", "progress"} <= kinds
    assert "quiver.sub.slow" in call("inspect", made_store).output


def test_inspect_shows_the_content_of_each_file(made_store):
    """As tables and as JSON, for every kind of file."""
    for path in sorted(made_store.rglob("*")):
        if path.is_file() and path.suffix == ".qseg":
            found = json.loads(call("inspect", path, "--json").output)
            assert found["kind"] == "segment"
            assert found["fields"]["checksum"] == "matches"
            assert "streams" in call("inspect", "--rows", 2, path).output
    log = json.loads(call("inspect", made_store / "wal" / "quiver.wal", "--json").output)
    assert log["fields"]["bundles"] >= 3


def test_a_file_of_another_program_is_a_usage_error(tmp_path):
    """It is not damage; files of the other logs belong to other commands."""
    path = tmp_path / "notes.txt"
    path.write_text("[bold]hello")
    result = call("inspect", path)

    assert result.exit_code == 2
    assert "no file of a store" in result.output
    assert "quiver topic inspect" in result.output


@pytest.mark.slow
def test_verify_next_to_a_live_writer_finds_no_damage(tmp_path, make_bundle):
    """While bundles are added, segments are sealed and the log is rotated."""
    settings = quiver.Settings(segment_bytes_max=8000, wal_rotate_bytes=10_000, wal_bytes_max=100_000)
    stop = threading.Event()
    with quiver.open(tmp_path / "s", settings) as store:
        reader = store.register("r", start="earliest")

        def write():
            n = 0
            while not stop.is_set():
                store.ingest(make_bundle(n), timeout=10)
                n += 20
                while (handle := reader.next_bundle(timeout=0)) is not None:
                    handle.ack()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(12):
                assert call("verify", tmp_path / "s").exit_code == 0
                assert call("stats", tmp_path / "s").exit_code == 0
        finally:
            stop.set()
            writer.join()


def test_run_check_prints_the_pipeline():
    """The graph, and that every exporter receives all data."""
    result = call("run", EXAMPLE, "--check", "--set", "directory=there")

    assert result.exit_code == 0
    assert "The exporter receives everything." in result.output
    assert "there/buffer" in result.output
    found = json.loads(call("run", EXAMPLE, "--check", "--json").output)
    assert found["exporters"][0]["subscriber"] == "parquet_exporter"


def test_run_refuses_an_invalid_file_with_the_line(tmp_path):
    """The message has the path, the line and a correction; no process is started."""
    path = tmp_path / "p.yaml"
    path.write_text(EXAMPLE.read_text().replace("          - persistence", "          - persistance"))
    result = call("run", path)
    line = path.read_text().splitlines().index("          - persistance") + 1

    assert result.exit_code == 2
    assert f"{path}:{line}: there is no node named persistance; did you mean persistence?" in result.output


def test_the_demo_does_not_remove_foreign_files(tmp_path):
    """A directory with other files is refused."""
    (tmp_path / "work.txt").write_text("mine")
    result = call("demo", tmp_path)

    assert result.exit_code == 2
    assert "not from an earlier demo" in result.output
    assert (tmp_path / "work.txt").read_text() == "mine"
    assert not (tmp_path / MARKER).exists()
