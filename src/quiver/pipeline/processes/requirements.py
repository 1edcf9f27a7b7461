"""
The requirements of a pipeline on this machine: extras, Java, free ports, readable files, directories.

A valid file may need what another machine has. `quiver run --check` reports both, each on its own.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from quiver.errors import DirectoryInUseError, QuiverError
from quiver.pipeline.config.exporter import (
    DeltaExporterConfig,
    ExporterConfig,
    IcebergExporterConfig,
    QuestdbExporterConfig,
)
from quiver.pipeline.config.qwp import QwpReceiverConfig
from quiver.pipeline.config.receiver import OtlpReceiverConfig, ReceiverConfig
from quiver.pipeline.model import Pipeline
from quiver.pipeline.plugins import Plugin
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.settings import split_address

__all__ = ["is_running", "missing_extras", "runs_on_spark", "unmet_requirements"]

_MODULES = {
    "otlp": ("grpc", "aiohttp", "google.protobuf", "opentelemetry.proto", "numpy"),
    "spark": ("pyspark", "pandas", "packaging"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "qwp": ("websockets", "numpy"),
    "objects": ("obstore",),
    "metrics": ("opentelemetry.sdk", "opentelemetry.exporter.prometheus", "prometheus_client"),
}
"""Extra → the modules of it that a pipeline imports."""

_BUCKETS = ("s3://", "gs://", "az://")


def runs_on_spark(plugin: Plugin) -> bool:
    """Return whether nodes of *plugin* run in the Spark process."""
    if plugin.is_store:
        return False
    return plugin.takes_rows or plugin.kind == "processor"


def missing_extras(plugin: Plugin) -> list[str]:
    """Return the extras that nodes of *plugin* need and that are not installed."""
    return _not_installed(_extras(plugin))


def unmet_requirements(pipeline: Pipeline, *, cores: int | None, run_dir: Path) -> list[str]:
    """
    Return why `quiver run` could not run *pipeline* on this machine, in sentences; empty if it could.

    The ports and directories are not checked while the pipeline itself is running: it has them.
    """
    found = [
        f'the extra {extra} is missing; run: pip install "arrow-quiver[{extra}]"' for extra in _all_extras(pipeline)
    ]
    found += _spark_problems(pipeline)
    found += _file_problems(pipeline)
    if not is_running(run_dir):
        found += _port_problems(pipeline, cores)
        found += _directory_problems(pipeline, run_dir)
    return found


def is_running(run_dir: Path) -> bool:
    """Return whether a `quiver run` uses *run_dir*."""
    from quiver.pipeline.processes.run import RUN_LOCK  # noqa: PLC0415 - the supervisor, which this module precedes

    if not (run_dir / RUN_LOCK).exists():
        return False
    try:
        hold(REAL_FILES, str(run_dir / RUN_LOCK), owner="quiver run --check").release()
    except DirectoryInUseError:
        return True
    except OSError:
        return False
    return False


# ── extras and Java ──────────────────────────────────────────────────────────────────────────────────


def _extras(plugin: Plugin) -> set[str]:
    model = plugin.model
    if runs_on_spark(plugin):
        more = {DeltaExporterConfig: "delta", IcebergExporterConfig: "iceberg", QuestdbExporterConfig: "qwp"}
        return {"otlp", "spark"} | {extra for kind, extra in more.items() if model is kind}
    if model is not None and issubclass(model, QwpReceiverConfig):
        return {"otlp", "qwp"}
    return {"otlp"} if model is not None and issubclass(model, OtlpReceiverConfig | ExporterConfig) else set()


def _all_extras(pipeline: Pipeline) -> list[str]:
    wanted = {"metrics"} if pipeline.metrics is not None else set()
    for node in pipeline.nodes.values():
        wanted |= _extras(node.plugin) | ({"objects"} if _in_a_bucket(node.config) else set())
    return _not_installed(wanted)


def _not_installed(extras: set[str]) -> list[str]:
    return sorted(extra for extra in extras if not all(map(_is_installed, _MODULES[extra])))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def _in_a_bucket(config: Any) -> bool:
    settings = getattr(config, "settings", None)
    if settings is not None and not callable(settings) and settings.cold_objects is not None:
        return settings.cold_objects.backend not in {"fs", "memory"}
    places = [getattr(config, key, None) for key in ("path", "objects")]
    return any(isinstance(place, str) and place.startswith(_BUCKETS) for place in places)


def _spark_problems(pipeline: Pipeline) -> Iterator[str]:
    if not pipeline.queries:
        return
    from quiver.pipeline.processes.run import check_pyspark  # noqa: PLC0415 - the supervisor, which this module precedes
    from quiver.spark.java import find_java_home  # noqa: PLC0415 - an extra

    checks: tuple[Callable[[], object], ...] = (
        lambda: check_pyspark(pipeline),
        find_java_home,
        pipeline.spark.check_files,
    )
    for check in checks:
        try:
            check()
        except (QuiverError, OSError) as error:
            yield str(error)


# ── files, ports and directories ─────────────────────────────────────────────────────────────────────


def _file_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield certificates and files with credentials that cannot be read."""
    for node in pipeline.nodes.values():
        if not isinstance(node.config, BaseModel):
            continue
        for key, path in _files_of(node.config):
            try:
                with Path(path).open("rb") as file:
                    file.read(1)
            except OSError as error:
                yield f"{node.name}: {key}: {path} cannot be read: {error.strerror}"


def _files_of(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config:
        if isinstance(value, BaseModel):
            yield from _files_of(value, f"{prefix}{key}.")
        elif isinstance(value, str) and (key.endswith("_file") or key == "file"):
            yield f"{prefix}{key}", value


def _port_problems(pipeline: Pipeline, cores: int | None) -> Iterator[str]:
    addresses = [
        (name, address)
        for name, config in pipeline.receivers
        if isinstance(config, ReceiverConfig)
        for address in config.addresses.values()
    ]
    if pipeline.metrics is not None:
        host, port = split_address(pipeline.metrics.listen)
        addresses += [("metrics", _joined(host, port + core)) for core in range(cores or 1)]
    if pipeline.status is not None:
        addresses.append(("status", pipeline.status.listen))
    for name, address in addresses:
        try:
            _bind(*split_address(address))
        except OSError as error:
            yield f"{name} cannot listen on {address}: {error.strerror or error}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _directory_problems(pipeline: Pipeline, run_dir: Path) -> Iterator[str]:
    """Yield directories that cannot be created or written to."""
    places = {buffer.name: buffer.config.path for buffer in pipeline.buffers if buffer.kind != "memory"}
    places["the run directory"] = str(run_dir)
    for name, path in places.items():
        existing = Path(path).absolute()
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            yield f"{name}: {existing} is not a directory"
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield f"{name}: {path} cannot be written: no permission in {existing}"
