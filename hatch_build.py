"""
Builds the compiled kernel `quiver._kernel` from `kernel/*.c`, when there is a C compiler.

A build hook of hatchling for wheels and editable installs, and a program for a checkout: `make kernel`. Without a
compiler or Python's headers it prints one line and builds nothing; Quiver then runs in pure Python.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "kernel"
MODULE = "_kernel.abi3.so"
IN_PLACE = ROOT / "src" / "quiver" / MODULE
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Wshadow")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
BUILD_SECONDS_MAX = 300


def compiler() -> list[str] | None:
    """Return the command of the C compiler: CC, or else the first of `cc`, `gcc` and `clang` on the path."""
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def build(target: Path, *flags: str) -> str | None:
    """Compile the kernel into *target*; on failure return the reason, and leave no file there."""
    target.unlink(missing_ok=True)
    command = compiler()
    if os.name != "posix" or command is None:
        return "there is no C compiler"
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        return f"Python's headers are not in {include}"
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    sources = sorted(map(str, SOURCES.glob("*.c")))
    # Written elsewhere and renamed: a process that has the former file mapped keeps it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kernel-") as directory:
        built = Path(directory) / MODULE
        command += ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS, *undefined, *flags]
        command += [f"-I{include}", *sources, "-o", str(built)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]} did not run: {error}"
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            return f"{command[0]} failed: {errors[0] if errors else done.returncode}"
        built.replace(target)
    return None


def report(reason: str | None) -> None:
    """Print one line if there is no compiled kernel."""
    if reason is not None:
        print(f"quiver: no compiled kernel, everything runs in pure Python: {reason}", file=sys.stderr)


class KernelBuildHook(BuildHookInterface[Any]):
    """Adds the kernel to a wheel, or builds it in place for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernel before the files of the wheel are collected."""
        if version == "editable":
            report(build(IN_PLACE))
            return
        built = Path(self.directory) / MODULE
        built.parent.mkdir(parents=True, exist_ok=True)
        reason = build(built)
        report(reason)
        if reason is None:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"cp311-abi3-{platform}")
            build_data["force_include"][str(built)] = f"quiver/{MODULE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the compiled file: the wheel has it."""
        if version != "editable":
            (Path(self.directory) / MODULE).unlink(missing_ok=True)


def main() -> int:
    """Build the kernel in place, or elsewhere, and with sanitizers on request."""
    parser = argparse.ArgumentParser(description="Build quiver._kernel.")
    parser.add_argument("--target", type=Path, default=IN_PLACE, help="the file to write")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    options = parser.parse_args()
    report(build(options.target.resolve(), *(SANITIZERS if options.sanitize else ())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
