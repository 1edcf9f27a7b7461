"""The Python files below `src/`, taken apart for the rules of `tools/tidy.py`: names, imports, findings."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import PurePosixPath

__all__ = [
    "Finding",
    "Import",
    "Module",
    "is_dotted",
    "is_within",
    "module_name",
    "package_of",
    "statements_in",
    "without_collector",
]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One broken rule: where, and the sentence that says what to do instead."""

    path: str
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.sentence}"


@dataclass(frozen=True)
class Module:
    """One Python file under `src/`, by its path from the repository's root."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree: several rules look at each, and a walk takes longer than that."""
        return list(ast.walk(self.tree))

    @property
    def name(self) -> str:
        """The dotted name that imports it."""
        return module_name(self.path)

    @property
    def package(self) -> str:
        """The first folder or module below `quiver`."""
        return package_of(self.name)

    def is_below(self, *places: str) -> bool:
        """Say whether the file is one of *places*, or in a folder of them."""
        return self.path.startswith(places)

    @cached_property
    def imports(self) -> list[Import]:
        """Every import that runs: not those for type checkers only."""
        return list(_imports(self.tree, self.name, is_package=self.path.endswith("__init__.py")))

    @cached_property
    def all_imports(self) -> list[Import]:
        """Every import, those for type checkers only included."""
        is_package = self.path.endswith("__init__.py")
        return list(_imports(self.tree, self.name, is_package=is_package, with_types=True))

    @cached_property
    def lazy(self) -> dict[str, str]:
        """Names that type checkers see here, and the module that has each: those of `lazy_names`."""
        blocks = [node for node in self.tree.body if isinstance(node, ast.If) and _is_for_types(node)]
        return {
            alias.asname or alias.name: node.module or ""
            for block in blocks
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module or name, absolute, and whether the statement stands inside a function."""

    target: str
    line: int
    in_function: bool

    @property
    def root(self) -> str:
        """The top-level package."""
        return self.target.partition(".")[0]


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements, handlers and cases directly in a node; a walk through all expressions takes much longer."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        found = getattr(node, field, None)
        if isinstance(found, list):
            yield from found


def is_dotted(node: ast.AST, module: str, name: str) -> bool:
    """Return whether *node* is `module.name`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def _is_for_types(node: ast.If) -> bool:
    names = (getattr(one, "id", "") or getattr(one, "attr", "") for one in ast.walk(node.test))
    return "TYPE_CHECKING" in names


@cache
def module_name(path: str) -> str:
    """Return the dotted name of a file under `src/`."""
    parts = PurePosixPath(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(name: str) -> str:
    """Return the part below `quiver` that a dotted name belongs to; empty for `quiver` itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == "quiver" and len(parts) > 1 else ""


def _imports(tree: ast.Module, name: str, *, is_package: bool, with_types: bool = False) -> Iterator[Import]:
    def walk(node: ast.AST, *, in_function: bool) -> Iterator[Import]:
        for child in statements_in(node):
            if not with_types and isinstance(child, ast.If) and _is_for_types(child):
                continue
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, in_function)
            elif isinstance(child, ast.ImportFrom):
                base = _base_of(child, name, is_package=is_package)
                for alias in child.names:
                    yield Import(f"{base}.{alias.name}" if base else alias.name, child.lineno, in_function)
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, in_function=inside)

    return walk(tree, in_function=False)


def _base_of(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_within(target: str, module: str) -> bool:
    """Return whether the dotted name *target* is *module* or is below it."""
    return target == module or target.startswith(f"{module}.")


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Syntax trees have millions of objects, which are not in cycles: the collector would look at them repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
