"""The sub-commands say what is there, in a table or as JSON, and how it went in the exit code."""

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


def test_the_version_is_told():
    """`quiver --version` says it and stops; behind a command it is wrong use."""
    assert re.fullmatch(r"quiver \S.* \(Python 3\.[\d.]+\S*\)\n", call("--version").output)
    assert call("stats", "--version").exit_code == 2


def test_the_module_is_the_command():
    """`python -m quiver` does what `quiver` does."""
    done = subprocess.run([sys.executable, "-m", "quiver", "--help"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("Usage: python -m quiver [OPTIONS] COMMAND")


@pytest.mark.parametrize("arguments", [["stats"], ["verify", "a", "b"], ["nothing"], ["inspect", "--rows", "-1", "x"]])
def test_wrong_use_exits_with_2(arguments):
    """A missing argument, one too many, an unknown command, a value out of range."""
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["stats", "verify", "inspect"])
def test_a_path_that_is_not_there_is_wrong_use(command, tmp_path):
    """One sentence with the path."""
    result = call(command, tmp_path / "nothing")

    assert result.exit_code == 2
    assert str(tmp_path / "nothing") in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_a_directory_that_is_no_store_is_wrong_use(command, tmp_path):
    """It says what is missing."""
    result = call(command, tmp_path)

    assert result.exit_code == 2
    assert "is not a store" in result.output


def test_a_missing_extra_is_one_sentence(monkeypatch, capsys):
    """The sentence says what to install; a module that no extra brings is a fault, not hidden."""
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as caught:
        entry.main()

    assert caught.value.code == 2
    assert capsys.readouterr().err == 'quiver: typer is not installed; run: pip install "arrow-quiver[cli]"\n'
    for module, extra in (("pyspark.sql", "spark"), ("obstore", "objects"), ("httpx", "etcd")):
        assert f'"arrow-quiver[{extra}]"' in missing_extra(ModuleNotFoundError("x", name=module))
    with pytest.raises(ModuleNotFoundError):
        missing_extra(ModuleNotFoundError("x", name="quiver.nothing"))


def test_a_missing_extra_inside_a_command_is_one_sentence_too(monkeypatch, tmp_path):
    """`demo` without the SDK says what to install and touches nothing."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    result = call("demo", tmp_path / "d")

    assert result.exit_code == 2
    assert "pip install" in result.output
    assert not (tmp_path / "d").exists()


def test_stats_counts(made_store):
    """Segments, log and lag; `fast` is five bundles ahead of `slow`."""
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


def test_verify_finds_nothing_in_a_sound_store(made_store):
    """Bundles are counted where they lie."""
    result = call("verify", made_store, "--json")
    found = json.loads(result.output)

    assert result.exit_code == 0
    assert (found["damaged"], found["findings"], found["segment_bundles"]) == (False, [], 12)
    assert found["log_entries"] >= 3
    assert "nothing is damaged" in call("verify", made_store).output


def test_inspect_of_a_directory_lists_its_files(made_store):
    """One line a file, with its kind."""
    result = call("inspect", made_store, "--json")
    kinds = {one["kind"] for one in json.loads(result.output)}

    assert result.exit_code == 0
    assert {"wal", "segment", "progress"} <= kinds
    assert "quiver.sub.slow" in call("inspect", made_store).output


def test_inspect_of_each_file_shows_what_it_holds(made_store):
    """Tables and JSON for every kind of file."""
    for path in sorted(made_store.rglob("*")):
        if path.is_file() and path.suffix == ".qseg":
            found = json.loads(call("inspect", path, "--json").output)
            assert found["kind"] == "segment"
            assert found["fields"]["checksum"] == "matches"
            assert "streams" in call("inspect", "--rows", 2, path).output
    log = json.loads(call("inspect", made_store / "wal" / "quiver.wal", "--json").output)
    assert log["fields"]["bundles"] >= 3


def test_a_file_of_somebody_else_is_named(tmp_path):
    """That is wrong use, not damage; other commands look at files of other logs."""
    path = tmp_path / "notes.txt"
    path.write_text("[bold]hello")
    result = call("inspect", path)

    assert result.exit_code == 2
    assert "no file of a store" in result.output
    assert "quiver topic inspect" in result.output


@pytest.mark.slow
def test_verify_beside_a_live_writer_finds_nothing(tmp_path, make_bundle):
    """While bundles come in, segments are sealed and the log is rotated, nothing looks damaged."""
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


def test_run_check_says_what_would_run():
    """The graph, and the promise that every exporter receives everything."""
    result = call("run", EXAMPLE, "--check", "--set", "directory=there")

    assert result.exit_code == 0
    assert "The exporter receives everything." in result.output
    assert "there/buffer" in result.output
    found = json.loads(call("run", EXAMPLE, "--check", "--json").output)
    assert found["exporters"][0]["subscriber"] == "parquet_exporter"


def test_run_refuses_a_wrong_file_with_its_line(tmp_path):
    """Path, line, and what to write instead; nothing starts."""
    path = tmp_path / "p.yaml"
    path.write_text(EXAMPLE.read_text().replace("          - persistence", "          - persistance"))
    result = call("run", path)
    line = path.read_text().splitlines().index("          - persistance") + 1

    assert result.exit_code == 2
    assert f"{path}:{line}: there is no node named persistance; did you mean persistence?" in result.output


def test_the_demo_does_not_remove_what_is_not_its_own(tmp_path):
    """A directory with other things in it is refused."""
    (tmp_path / "work.txt").write_text("mine")
    result = call("demo", tmp_path)

    assert result.exit_code == 2
    assert "not from an earlier demo" in result.output
    assert (tmp_path / "work.txt").read_text() == "mine"
    assert not (tmp_path / MARKER).exists()
