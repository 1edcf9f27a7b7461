"""
The built wheel, installed alone, is complete.

The environment has the wheel and exactly the packages that its metadata requires, linked from the environment that
runs the tests: without a network, and without packages that the metadata omits.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]

INGEST_AND_READ_BACK = """
import sys
import pyarrow as pa
import quiver

rows = pa.record_batch({"id": pa.array(range(3), pa.int64()), "body": ["a", "b", "c"]})
with quiver.open(sys.argv[1]) as store:
    store.ingest(quiver.Bundle({30: rows}), durable=True)
    subscriber = store.register("reader", start="earliest")
    store.seal()
    handle = subscriber.next_bundle(timeout=30)
    print(handle.bundle[30].to_pylist() == rows.to_pylist())
    handle.ack()
    store.maintain()
print([name for name in ("typer", "pydantic", "pyspark", "grpc", "pandas") if name in sys.modules])
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run *command* with only PATH from this environment."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def base_requirements(wheel: Path) -> list[str]:
    """The packages that the wheel's metadata requires without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    requirements = [
        Requirement(line.partition(":")[2].strip())
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist:")
    ]
    return [need.name for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})]


def link(package: str, target: Path) -> None:
    """Link the files of an installed package and of its dependencies into *target*."""
    installed = importlib.metadata.distribution(package)
    for top in sorted({file.parts[0] for file in installed.files or () if file.parts[0] not in {"..", "__pycache__"}}):
        if not (target / top).exists():
            (target / top).symlink_to(Path(str(installed.locate_file(top))))
    for line in installed.requires or ():
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            link(need.name, target)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from this tree."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """An environment with only the wheel and its dependencies."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True, timeout=120)
    python = path / "bin" / "python"
    (packages,) = path.glob("lib/python*/site-packages")
    for package in base_requirements(wheel):
        link(package, packages)
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel]
    # On PYTHONPATH pip could find the tested quiver, and would install no other.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(list(map(str, command)), env=variables, check=True, timeout=120)
    return path


def test_wheel_ingests_and_reads_back(environment, tmp_path):
    """With only its base dependencies the wheel ingests, delivers and acknowledges; no extra is imported."""
    done = run(environment / "bin" / "python", "-c", INGEST_AND_READ_BACK, tmp_path / "buffer", cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True", "[]"]


def test_wheel_is_not_the_source_tree(environment, tmp_path):
    """The environment imports the installed wheel."""
    done = run(environment / "bin" / "python", "-c", "import quiver; print(quiver.__file__)", cwd=tmp_path)

    assert done.stdout.startswith(str(environment))


@pytest.mark.parametrize("arguments", [[], ["run", "pipeline.yaml"], ["--help"]])
def test_command_without_its_extra_names_the_extra(environment, tmp_path, arguments):
    """`quiver` without typer prints one sentence that names the extra, and fails."""
    done = run(environment / "bin" / "quiver", *arguments, cwd=tmp_path)

    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "arrow-quiver[cli]" in done.stderr


def test_wheel_has_the_package_and_its_license(wheel):
    """The wheel has the license and the typing marker, and nothing but the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert "quiver/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"quiver"}
