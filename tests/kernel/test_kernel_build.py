"""The build of the compiled kernel: with a compiler it succeeds, without one it prints one line and Quiver runs."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HAS_COMPILER = shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def run(*command, **environment):
    return subprocess.run(
        list(map(str, command)), env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


def named(**environment):
    code = "from quiver.primitives.kernel import describe_kernel, kernel_name; print(kernel_name(), describe_kernel())"
    return run(sys.executable, "-c", code, **environment).stdout.strip()


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler and Python's headers")
def test_kernel_is_built_without_warnings(tmp_path):
    """The compiler of this machine accepts the sources, with all warnings as errors."""
    target = tmp_path / "_kernel.abi3.so"
    done = run(sys.executable, ROOT / "hatch_build.py", "--target", target, CC="cc -Werror")
    assert (done.returncode, done.stderr) == (0, "")
    loaded = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import _kernel; print(_kernel.API)"
    assert run(sys.executable, "-c", loaded).stdout.strip().isdigit()


def test_kernel_without_a_compiler_is_skipped_with_one_line(tmp_path):
    """A machine without a compiler prints one line, fails nothing, and has no kernel."""
    target = tmp_path / "_kernel.abi3.so"
    target.write_bytes(b"the former one")
    done = run(sys.executable, ROOT / "hatch_build.py", "--target", target, PATH=str(tmp_path), CC="")
    assert done.returncode == 0
    assert re.fullmatch(r"quiver: no compiled kernel, everything runs in pure Python: .+\n", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_kernel_that_does_not_compile_is_skipped_with_one_line(tmp_path):
    """A compiler that fails is as good as none."""
    done = run(sys.executable, ROOT / "hatch_build.py", "--target", tmp_path / "kernel.so", CC="false")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert list(tmp_path.iterdir()) == []


def test_quiver_pure_selects_the_twins():
    """QUIVER_PURE=1 selects pure Python; 0 does not."""
    assert named(QUIVER_PURE="1") == "python no compiled kernel: QUIVER_PURE is set"
    assert named(QUIVER_PURE="0") == named(QUIVER_PURE="")


def test_stub_names_every_function(kernel):
    """The stub declares what the kernel has, and nothing else."""
    stub = (ROOT / "src" / "quiver" / "_kernel.pyi").read_text(encoding="utf-8")
    declared = set(re.findall(r"^(?:def |class )?(\w+)(?:\(|:)", stub, re.MULTILINE))
    assert declared == {name for name in vars(kernel) if not name.startswith("__")}
