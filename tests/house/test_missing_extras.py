"""A package whose extra is not installed names that extra."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "without", "extra"),
    [
        ("from quiver.qwp import Sender", "websockets", "qwp"),
        ("import quiver.spark; quiver.spark.session()", "pyspark", "spark"),
        ("from quiver.otap import view", "numpy", "otlp"),
        ("from quiver.objects import open_objects; open_objects('s3://bucket')", "obstore", "objects"),
        ("from quiver.metadata import open_metadata; open_metadata('etcd://localhost:1')", "httpx", "etcd"),
        ("import quiver.otel; quiver.otel.QuiverLogExporter", "opentelemetry", "otel"),
    ],
)
def test_the_error_names_the_extra_to_install(statement, without, extra):
    code = f"import sys; sys.modules[{without!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f'needs an extra; run: pip install "arrow-quiver[{extra}]"')
