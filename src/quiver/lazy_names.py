"""
Lazy imports of a package's public names.

A package that imports its own modules holds its import lock meanwhile. A second thread that imports one of those
modules holds the module's lock and waits for the package's, and the two deadlock. So each `__init__` of this library
imports nothing: type checkers see its names below ``TYPE_CHECKING``, and at run time `lazy_names` imports them.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

__all__ = ["lazy_names", "naming_extra", "renamed_keyword", "warn_renamed"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def warn_renamed(owner: str, name: str, new: str) -> None:
    """Warn that *name* of *owner* was renamed to *new*. Call it from the function that the user called."""
    warnings.warn(f"{owner}.{name} is now {owner}.{new}; use the new name", DeprecationWarning, stacklevel=3)


def renamed_keyword(former: str, name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that also accepts the keyword *former* for *name*, with a `DeprecationWarning`."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if former in kwargs and name not in kwargs:
                called = type(args[0]).__name__ if function.__name__ == "__init__" else function.__qualname__
                warnings.warn(
                    f"{called}({former}=) is now {name}=; use the new name",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[name] = kwargs.pop(former)
            return function(*args, **kwargs)

        return call

    return decorate


@contextmanager
def naming_extra(what: str, extra: str | None) -> Iterator[None]:
    """Add to the error of a missing package which *extra* to install for *what*; without *extra*, add nothing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if extra is not None:
            missing.add_note(f'{what} needs an extra; run: pip install "arrow-quiver[{extra}]"')
        raise


def lazy_names(
    package: str,
    modules: Mapping[str, str],
    *,
    extra: str | None = None,
    renamed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """
    Return `__getattr__` and `__dir__` of *package*.

    Args:
        package: the name of the package.
        modules: module → its names, separated by spaces; ``open_path=open`` is exported as `open`. Other names are
            those of submodules.
        extra: the extra with the packages that the modules need; named in the error when one of them is missing.
        renamed: former name → current name. The former name works for one more release, with a
            `DeprecationWarning`.
    """
    former = renamed or {}
    places: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names.split():
            inside, _, outside = name.partition("=")
            places[outside or inside] = (module, inside)

    def find(name: str) -> Any:
        if name in former:
            warn_renamed(package, name, former[name])
            return find(former[name])
        if name in places:
            module, inside = places[name]
            with naming_extra(package, extra):
                found = getattr(import_module(module), inside)
            setattr(sys.modules[package], name, found)
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(sys.modules[package]), *places})
