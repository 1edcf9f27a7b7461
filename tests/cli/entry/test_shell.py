"""Short options, and completion in shells."""

import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def quiver_on_path(tmp_path):
    """Return an environment in which `quiver` is on the search path."""
    program = tmp_path / "bin" / "quiver"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom quiver.cli.main import main\nmain()\n")
    program.chmod(0o755)
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": paths, "HOME": str(tmp_path)}


def run(environment, *argv, **more):
    done = subprocess.run(argv, env={**environment, **more}, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", [[], ["run"], ["topic"], ["topic", "produce"]])
def test_h_is_help_everywhere(call, command):
    """Of the program, of a command, of a group, and of a command in a group."""
    short, long = call(*command, "-h"), call(*command, "--help")
    assert (short.exit_code, short.output) == (0, long.output)


def test_capital_v_is_the_version(call):
    assert call("-V").output == call("--version").output
    assert call("-V").output.startswith("quiver ")


def test_bash_completes_commands_and_options(quiver_on_path):
    """With the script that `quiver --show-completion` prints, as an interactive bash calls it."""
    script = """
        eval "$(_QUIVER_COMPLETE=source_bash quiver)"
        COMP_WORDS=($1) COMP_CWORD=$2
        _quiver_completion quiver
        echo "${COMPREPLY[@]}"
    """
    for line, word, completed in (
        ("quiver sna", "1", "snapshot"),
        ("quiver run --mer", "2", "--mermaid"),
        ("quiver topic subsc", "2", "subscriptions"),
    ):
        assert run(quiver_on_path, "bash", "-c", script, "bash", line, word) == f"{completed}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_in_its_shell(quiver_on_path, shell):
    """Each shell that is installed parses the script that is for it."""
    script = run(quiver_on_path, "quiver", _QUIVER_COMPLETE=f"source_{shell}")
    assert "_QUIVER_COMPLETE" in script
    if shutil.which(shell) is not None:
        assert run(quiver_on_path, shell, "-n", "-c", script) == ""


def test_zsh_and_fish_get_descriptions(quiver_on_path):
    """The answers that their scripts ask for: the name and the help of each command that fits."""
    asks = {"_TYPER_COMPLETE_ARGS": "quiver sna", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for shell in ("zsh", "fish"):
        answer = run(quiver_on_path, "quiver", _QUIVER_COMPLETE=f"complete_{shell}", **asks)
        assert "snapshot" in answer
        assert "Copy a store" in answer


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands(quiver_on_path):
    """As an interactive fish does it, with its own completion of what was typed."""
    script = "_QUIVER_COMPLETE=source_fish quiver | source; complete -C 'quiver sna'"
    assert run(quiver_on_path, "fish", "-c", script).split("\t")[0] == "snapshot"
