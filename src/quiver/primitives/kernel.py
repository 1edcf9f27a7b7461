"""
The compiled kernel, if there is one: the only module that imports `quiver._kernel`.

Each function of the kernel has a twin in Python, which is the reference and needs no compiler. A module with such a
twin chooses once, when it is imported::

    count = count_in_python if KERNEL is None else KERNEL.count

The environment variable ``QUIVER_PURE=1`` selects the twins. Sources are in `kernel/`, the build is `hatch_build.py`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["KERNEL", "describe_kernel", "kernel_name"]

_API = 10
"""`KERNEL_API` of the sources: a checkout may contain a kernel that was built from older ones."""


def _load() -> tuple[Any, str]:
    if os.environ.get("QUIVER_PURE", "") not in {"", "0"}:
        return None, "QUIVER_PURE is set"
    try:
        kernel = importlib.import_module("quiver._kernel")
    except ImportError as error:
        return None, "it was not built" if isinstance(error, ModuleNotFoundError) else str(error)
    if kernel.API != _API:
        return None, "it was built from other sources: run `make kernel`"
    return kernel, ""


KERNEL, _REASON = _load()


def kernel_name() -> str:
    """Return which functions run: ``compiled`` or ``python``."""
    return "python" if KERNEL is None else "compiled"


def describe_kernel() -> str:
    """Return a phrase with the kernel in use, and with the reason if it is not the compiled one."""
    return "compiled kernel" if KERNEL is not None else f"no compiled kernel: {_REASON}"
