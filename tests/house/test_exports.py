"""The public surface is small, complete, typed, and cheap to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

import quiver
from quiver import errors
from quiver.aof import AofManager
from quiver.store.cores import store, subscriber
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics import TopicStore

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("aiohttp", "awscrt", "grpc", "obstore", "opentelemetry", "pandas", "pydantic", "pyspark", "rich", "typer")


def test_all_is_small_sorted_and_valid():
    """`quiver.__all__` has at most 26 names: constants, classes, functions; each of them exists."""
    assert len(quiver.__all__) <= 26
    assert list(quiver.__all__) == sorted(
        quiver.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    assert [name for name in quiver.__all__ if not hasattr(quiver, name)] == []


def test_documented_names_are_public():
    """The names that programs type are in `quiver.__all__`."""
    promised = {"Adapter", "Bundle", "BundleHandle", "BundleReceipt", "BundleRef", "QuiverError", "Settings", "Store"}

    assert promised | {"CapacityError", "Subscriber", "open", "read"} <= set(quiver.__all__)


def test_import_loads_nothing_heavy():
    """`import quiver` loads no Spark, gRPC, command-line or data-frame package."""
    script = f"import sys, quiver; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


FIRST_IMPORTS = """
import sys, threading
from importlib import import_module

names, failures = sys.argv[1:], []
together = threading.Barrier(len(names))

def load(name):
    together.wait()
    try:
        module = import_module(name)
        for one in getattr(module, "__all__", ()):
            getattr(module, one)
    except BaseException as error:
        failures.append(f"{name}: {error!r}")

threads = [threading.Thread(target=load, args=(name,), daemon=True) for name in names]
for one in threads:
    one.start()
for one in threads:
    one.join(100)
print([one.name for one in threads if one.is_alive()] + failures)
"""

TOGETHER = (
    ("quiver", "quiver.qwp", "quiver.topics", "quiver.aof"),
    ("quiver", "quiver.qwp"),
    ("quiver.qwp", "quiver.qwp.sender", "quiver.qwp.slots.slot", "quiver"),
    ("quiver.otap", "quiver.store.store", "quiver.topics.store", "quiver.objects"),
    ("quiver.aof.log", "quiver.aof", "quiver.metadata", "quiver.metadata.ownership"),
    ("quiver.spark", "quiver.spark.spark_session", "quiver.store.reading.segments", "quiver.delivery.batches"),
)


def first_imports(names: tuple[str, ...], rounds: int) -> None:
    """Import *names* in as many threads, in fresh processes, a few of them at once."""
    for _ in range(0, rounds, 4):
        command = [sys.executable, "-c", FIRST_IMPORTS, *names]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(min(rounds, 4))]
        assert [one.communicate(timeout=150)[0].strip() for one in running] == ["[]"] * len(running)


def test_threads_may_import_for_the_first_time_together():
    """Two threads deadlocked, or one got a KeyError, in 8 of 8 processes that imported four modules."""
    first_imports(TOGETHER[0], 4)


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_threads_may_import_for_the_first_time_together_repeatedly(names):
    first_imports(names, 60)


@pytest.mark.parametrize("name", ["", "aof", "metadata", "objects", "otap", "otel", "qwp", "spark", "topics"])
def test_lazy_names_are_those_that_type_checkers_see(name):
    """`dir` has them, `import *` imports them, and other names raise AttributeError."""
    package = import_module(f"quiver.{name}".rstrip("."))
    source = Path(str(package.__file__)).read_text()
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert seen == set(package.__all__)
    # A module of the same name would replace it as soon as the module is imported.
    assert not [one for one in seen if Path(str(package.__file__)).with_name(f"{one}.py").exists()]
    assert set(package.__all__) <= set(dir(package))
    for one in package.__all__:
        assert getattr(package, one) is vars(package)[one]
    assert not hasattr(package, "no_such_name")
    assert not hasattr(package, "_private")


def test_modules_of_a_package_are_found_by_their_names():
    """As they were when `import quiver` loaded them."""
    script = "import quiver; print(quiver.errors.CapacityError.__name__, quiver.store.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["CapacityError", "quiver.store"]


def test_marked_as_typed():
    """The package declares to type checkers that it has types."""
    assert files("quiver").joinpath("py.typed").is_file()


def test_public_types_serve_a_caller():
    """mypy, strict, accepts the public API as a user writes it, and refuses what is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "tests/typing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize(("owner", "former", "today"), [
    (quiver, "WrongUse", "UsageError"), (quiver, "Damaged", "CorruptionError"), (quiver, "AtCapacity", "CapacityError"),
    (errors, "PartlyKept", "PartialWriteError"), (errors, "OpenedBeforeFork", "ForkError"),
    (errors, "RetryLater", "TransientError"), (store, "ShardedStore", "MultiCoreStore"),
    (subscriber, "ShardedSubscriber", "MultiCoreSubscriber"),
])  # fmt: skip
def test_former_names_still_work(owner, former, today):
    """With a warning that names the new one; `except` clauses of existing programs catch the same errors."""
    with pytest.warns(DeprecationWarning, match=f"{former} is now .*{today}"):
        assert getattr(owner, former) is getattr(owner, today)


def test_a_usage_error_is_a_value_error():
    assert issubclass(quiver.UsageError, ValueError)


@pytest.mark.parametrize("open_log", [quiver.open, AofManager.open, TopicStore.open])
def test_the_former_name_of_the_file_system_still_works(open_log):
    disk = CrashFileSystem()

    with (
        pytest.warns(DeprecationWarning, match="files=.* is now fs="),
        open_log("/logs", files=disk, clock=ManualClock(), background=False),
    ):
        assert disk.exists("/logs")
