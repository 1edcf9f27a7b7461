"""
The public surface is small, complete, typed, and cheap to import.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import quiver

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("aiohttp", "awscrt", "grpc", "obstore", "opentelemetry", "pandas", "pydantic", "pyspark", "rich", "typer")


def test_all_is_small_sorted_and_true():
    """`quiver.__all__` has at most 25 names: constants, classes, functions; each of them is there."""
    assert len(quiver.__all__) <= 25
    assert list(quiver.__all__) == sorted(
        quiver.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    assert [name for name in quiver.__all__ if not hasattr(quiver, name)] == []


def test_promised_names_are_public():
    """The names that programs type are in `quiver.__all__`."""
    promised = {"Adapter", "Bundle", "BundleHandle", "BundleReceipt", "BundleRef", "QuiverError", "Settings", "Store"}

    assert promised | {"AtCapacity", "Subscriber", "open", "read"} <= set(quiver.__all__)


def test_import_loads_nothing_heavy():
    """`import quiver` loads no Spark, gRPC, command-line or data-frame package."""
    script = f"import sys, quiver; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"


def test_marked_as_typed():
    """Type checkers are told that the package has types."""
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
