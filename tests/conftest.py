"""
The length of the marked lanes, the `quiver` that programs started by tests import, and the tests that must run in one
process.

The default of each lane is what its documentation promises; a smaller number is for a quick check.
"""

import dataclasses
import functools
import gc
import logging
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from emulators.azure import azure_server  # noqa: F401 - a fixture
from emulators.gcs import gcs_server  # noqa: F401 - a fixture
from etcd_server import (
    etcd_server,  # noqa: F401 - a fixture
    secure_etcd,  # noqa: F401 - a fixture
)
from quiver.cli import main
from quiver.settings import Settings
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from s3_server import (
    s3_server,  # noqa: F401 - a fixture
    versity_server,  # noqa: F401 - a fixture
)

settings.register_profile("quiver", deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is slow, also in making examples, which shows nothing about the tested code."""
settings.register_profile("fast", settings.get_profile("quiver"), max_examples=30)
"""For `--fast`. Tests that choose their own number of examples keep it."""
settings.load_profile("quiver")

# Building all commands takes longer than most command lines of tests, and they have no state.
main.build_app = functools.cache(main.build_app)
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

_QUIVER = find_spec("quiver")
if _QUIVER is not None and _QUIVER.origin is not None:
    # Programs that tests start import the tested quiver, not an installed one.
    _PATHS = [os.path.dirname(os.path.dirname(_QUIVER.origin)), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quiver", "the length of the marked lanes")
    group.addoption("--kill-cycles", type=int, default=10_000, help="fork-and-kill cycles of the kill lane")
    group.addoption("--crash-states", type=int, default=1_000_000, help="enumerated states of the crash_states lane")
    group.addoption("--crash-seed", type=int, default=0, help="number of the first workload of the crash states")
    group.addoption("--soak-seconds", type=float, default=600.0, help="how long each variant of the soak runs")
    group.addoption("--fleet-soak-seconds", type=float, default=600.0, help="how long the soak of a fleet kills")
    group.addoption("--delivery-seconds", type=float, default=300.0, help="how long the soak of deliveries runs")
    group.addoption("--fuzz-inputs", type=int, default=100_000, help="invalid inputs for each decoder of OTLP and OTAP")
    group.addoption("--twin-inputs", type=int, default=500, help="inputs of each source for the kernel's twins")
    group.addoption("--strace-stride", type=int, default=1, help="fail every n-th system call only")
    group.addoption("--fast", action="store_true", help="leave out tests that need Java, and tests/long_modules.txt")
    group.addoption("--spark", action="store_true", help="run only tests/spark and other tests that need Spark")
    group.addoption(
        "--deliver-sealed", action="store_true", help="as if `deliver_unsealed` of a store were off by default"
    )
    group.addoption("--workers", type=int, default=2, help="processes that share the crash states")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # of pytest-xdist: by numbers of tests, which would run long ones last
    if config.getoption("--fast"):
        settings.load_profile("fast")
    if config.getoption("--deliver-sealed"):
        # Programs that tests start, except by a fork, keep the default.
        defaults = {field.name: field.default for field in dataclasses.fields(Settings)} | {"deliver_unsealed": False}
        Settings.__init__.__defaults__ = tuple(defaults.values())  # type: ignore[attr-defined]


def pytest_xdist_auto_num_workers() -> int:
    """Start two processes per core for `-n auto`: half of the time, tests wait for other processes and for syncs."""
    return 2 * (os.cpu_count() or 1)


_MAY_FORK = ("kill", "soak", "strace")
"""Lanes that run alone, in a process in which no other test ran."""
_FORK: Callable[[], int] | None = getattr(os, "fork", None)


def _refuse_to_fork() -> int:
    raise AssertionError("this process may have threads of Spark and gRPC: see clean_process.in_a_clean_process")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test forks a process that ran other tests: the child would hang once in a hundred runs."""
    if _FORK is not None:
        os.fork = _FORK if any(map(item.get_closest_marker, _MAY_FORK)) else _refuse_to_fork


@pytest.fixture
def quiet() -> Iterator[None]:
    """Log nothing: for tests of failures that would be logged thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fs() -> CrashFileSystem:
    return CrashFileSystem()


_SHARED = ("s3_server", "versity_server", "gcs_server", "azure_server", "etcd_server")


_LONG_MODULES = frozenset((Path(__file__).parent / "long_modules.txt").read_text(encoding="utf-8").split())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, do not import the long modules: pytest would compile their assertions for nothing."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    return collection_path.relative_to(config.rootpath).as_posix() in _LONG_MODULES or None


def _needs_java(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None or "spark" in getattr(item, "fixturenames", ())


def _is_fast(item: pytest.Item) -> bool:
    return not _needs_java(item) and item.nodeid.partition("::")[0] not in _LONG_MODULES


def _is_for_spark(item: pytest.Item) -> bool:
    return _needs_java(item) or item.nodeid.startswith("tests/spark/")


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = [item for item in items if wanted(item)]


def _group_of(item: pytest.Item) -> str:
    """Return the name of the group of tests that run in one process: those of Spark, of a server, or of a file."""
    if _needs_java(item):
        return "spark"
    return next((server for server in _SHARED if server in getattr(item, "fixturenames", ())), str(item.path))


def _is_short(item: pytest.Item) -> bool:
    return _group_of(item) == str(item.path) and item.nodeid.partition("::")[0] not in _LONG_MODULES


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """
    Keep tests that share a Spark session, a server or else a file in one process, and run the longest groups first.

    A group for each test would slow down pytest-xdist, which iterates over all groups whenever a test ends. A long
    group at the end would run alone, while the other processes have nothing left to do.
    """
    if config.getoption("--fast"):
        _keep(config, items, _is_fast)
    if config.getoption("--spark"):
        _keep(config, items, _is_for_spark)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    result = yield
    items.sort(key=lambda item: (not _needs_java(item), _is_short(item)))  # otherwise the order stays random
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """
    Keep the garbage collector away from the objects of the collection.

    There are about 400,000 of them, and they live until the end: each pass over them takes a third of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A group that is not part of its tests' names has no effect: each process would start its own session."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError("this pytest-xdist does not group tests with this pytest: run `make setup`")


def pytest_unconfigure() -> None:
    """Let the interpreter collect the objects of the collection at its exit, as libraries that report leaks expect."""
    gc.unfreeze()
