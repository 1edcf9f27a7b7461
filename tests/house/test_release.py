"""`make release`: version, changelog, wheel and source distribution, commit and tag; and the workflows."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import release

ROOT = Path(__file__).resolve().parents[2]
DAY = datetime.date(2027, 1, 2)
CHANGES = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## 0.1.0 – 2026-01-01\n\n- The first.\n"


def test_the_changelog_keeps_an_empty_unreleased_section():
    new = release.release_changelog(CHANGES, "0.2.0", DAY)
    assert new.startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 – 2027-01-02\n\n### Added\n\n- A thing.\n")
    assert new.endswith("## 0.1.0 – 2026-01-01\n\n- The first.\n")
    with pytest.raises(release.ReleaseError, match="nothing below Unreleased"):
        release.release_changelog(new, "0.3.0", DAY)


@pytest.mark.parametrize(
    ("old", "new"), [("0.1.0", "0.1.1"), ("0.9.0", "0.10.0"), ("0.1.0", "0.2.0rc1"), ("0.2.0rc1", "0.2.0")]
)
def test_a_later_version_is_accepted(old, new):
    assert release.release_project(f'a = 1\nversion = "{old}"\n', new) == f'a = 1\nversion = "{new}"\n'


@pytest.mark.parametrize("new", ["0.1.0", "0.0.9", "0.1.0rc1", "v0.2.0", "0.2", "0.2.0.dev1", ""])
def test_an_earlier_or_invalid_version_is_refused(new):
    with pytest.raises(release.ReleaseError):
        release.release_project('version = "0.1.0"\n', new)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project with the build settings of this one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    for name in ("README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("kernel", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "src" / "quiver").mkdir(parents=True)
    for name in ("__init__.py", "py.typed"):
        shutil.copy(ROOT / "src" / "quiver" / name, tmp_path / "src" / "quiver")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "start"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    for key, value in (("user.name", "A"), ("user.email", "a@example.org")):
        subprocess.run(["git", "config", key, value], cwd=tmp_path, check=True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def git(project, *arguments):
    return subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True, text=True).stdout.strip()


def test_one_command_makes_a_release(project):
    """The wheel and the source distribution have the examples; the wheel is built from the latter."""
    built = release.release("0.2.0", DAY)
    source, wheel = sorted(built, key=lambda path: path.suffix)
    assert source.name == "arrow_quiver-0.2.0.tar.gz"
    with tarfile.open(source) as archive:
        assert "arrow_quiver-0.2.0/examples/otlp-forward.yaml" in archive.getnames()
    with zipfile.ZipFile(wheel) as archive:
        assert "quiver/examples/otlp-forward.yaml" in archive.namelist()
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        assert "\nVersion: 0.2.0\n" in archive.read(metadata).decode()
    assert git(project, "log", "-1", "--format=%s") == "Release 0.2.0"
    assert git(project, "tag", "--list") == "v0.2.0"
    assert git(project, "status", "--porcelain") == ""
    with pytest.raises(release.ReleaseError, match="the tag v0.2.0 exists"):
        release.release("0.2.0", DAY)


def test_a_failed_release_changes_nothing(project, monkeypatch):
    """Neither files nor history; and a work tree with changes is refused before anything is done."""
    monkeypatch.setattr(release, "_build", lambda _version: (_ for _ in ()).throw(release.ReleaseError("no disk")))
    with pytest.raises(release.ReleaseError, match="no disk"):
        release.release("0.2.0", DAY)
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "tag", "--list") == ""
    (project / "LICENSE").write_text("mine")
    with pytest.raises(release.ReleaseError, match="commit them first"):
        release.release("0.2.0", DAY)


def test_the_command_needs_a_version():
    done = subprocess.run([sys.executable, ROOT / "tools" / "release.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: make release VERSION=0.2.0\n")


def test_the_workflows_publish_without_a_secret():
    """Publishing uses the identity of the workflow, in a job that has no other permission."""
    found = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert set(found) == {"check.yml", "release.yml"}
    jobs = found["release.yml"]["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert all("secrets." not in str(job) for job in jobs.values())
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in found.values())


def test_the_supported_versions_of_python_agree():
    """In the classifiers, in the checks of a change, and in the table of platforms."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    classified = [f"3.{one.removeprefix(prefix)}" for one in project["classifiers"] if one.startswith(prefix)]
    check = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Platforms")[2]
    assert classified == ["3.11", "3.12", "3.13", "3.14"]
    assert check["jobs"]["wheel"]["strategy"]["matrix"]["python"] == classified
    assert all(version in table for version in classified)
