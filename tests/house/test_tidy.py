"""The repository follows its own rules, and each rule finds code that breaks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tidy

LONG = "\n".join(f"x{n} = {n}" for n in range(601)) + "\n"
LONG_FUNCTION = "def f():\n" + "\n".join(f"    x{n} = {n}" for n in range(70)) + "\n"


def sentences(path: str, source: str) -> str:
    """Return the findings of all one-file rules about *source* at *path*, as one text."""
    return "\n".join(map(str, tidy.check_module(tidy.Module(path, source))))


def test_repository_keeps_its_rules():
    """No file of this repository breaks a rule."""
    files, findings = tidy.read_tree(tidy.ROOT)
    findings += tidy.check_tree(files)

    assert "tools/tidy.py" in files
    assert [str(finding) for finding in findings] == []


@pytest.mark.parametrize(
    ("path", "source", "sentence"),
    [
        ("store/store.py", LONG, "a file has at most 600"),
        ("store/store.py", LONG_FUNCTION, "f has 71 lines; a function has at most 70"),
        ("store/format/cursor.py", "import os\n", "a pure module takes bytes"),
        ("store/format/cursor.py", "from pathlib import Path\n", "a pure module takes bytes"),
        ("store/format/cursor.py", "def f():\n    import time\n", "a pure module takes bytes"),
        ("qwp/wire/message.py", "import threading\n", "a pure module takes bytes"),
        ("qwp/connection/session.py", "import asyncio\n", "a pure module takes bytes"),
        ("store/reading/offsets.py", "import time\n", "a pure module takes bytes"),
        ("store/removal/retention.py", "import os.path\n", "a pure module takes bytes"),
        ("store/subscribers/state.py", "from quiver.clock import Clock\n", "a pure module takes bytes"),
        (
            "otap/views/view.py",
            "from quiver.primitives.disk.real_files import REAL_FILES\n",
            "a pure module takes bytes",
        ),
        ("primitives/scan.py", "import os\n", "a pure module takes bytes"),
        ("otap/views/view.py", "with open('x') as f: pass\n", "open() goes around the FileSystem port"),
        ("store/wal/writer.py", "with open('x') as f: pass\n", "open() goes around the FileSystem port"),
        ("store/wal/writer.py", "from quiver.topics import TopicStore\n", "stores never import one another"),
        ("aof/log.py", "import quiver.store.store\n", "stores never import one another"),
        ("qwp/slots/slot.py", "from ...aof import log\n", "stores never import one another"),
        ("topics/wal/writer.py", "from quiver import qwp\n", "stores never import one another"),
        ("store/store.py", "from quiver.receivers import otlp\n", "a store imports only what lies below it"),
        ("store/store.py", "import quiver\n", "a store imports only what lies below it"),
        ("primitives/disk/atomic.py", "from quiver.store.format import names\n", "primitives know no store"),
        ("store/segment/reader.py", "import mmap\n", "only primitives maps and locks files"),
        ("spark/stream.py", "import fcntl\n", "only primitives maps and locks files"),
        ("store/store.py", "import os\nos.fsync(3)\n", "only primitives calls fsync"),
        ("store/store.py", "import os\nsync = os.fdatasync\n", "only primitives calls fdatasync"),
        ("pipeline/processes/run.py", "from os import replace\n", "only primitives calls replace"),
        ("pipeline/processes/run.py", "import os\nos.rename('a', 'b')\n", "only primitives calls rename"),
        ("aof/append/segment.py", "import os\nos.posix_fallocate(3, 0, 1)\n", "only primitives calls posix_fallocate"),
        ("cli/main.py", "path.rename(target)\n", "only primitives calls rename"),
        ("cli/main.py", "path.replace(target)\n", "only primitives calls replace"),
        ("cli/main.py", "import shutil\nshutil.move('a', 'b')\n", "only primitives calls move"),
        ("store/store.py", "def f():\n    from quiver.store import catalog\n", "imports stand at the top"),
        ("bundle.py", "def f():\n    import json\n", "imports stand at the top"),
        ("settings.py", "assert 1\n", "assert is removed by python -O"),
        ("store/store.py", "async def f(): ...\n", "async def belongs to receivers"),
        ("store/store.py", "import os\nos.environ['X']\n", "the library reads no environment"),
        ("settings.py", "import os\nos.getenv('X')\n", "the library reads no environment"),
        ("aof/log.py", "import threading\nthreading.Thread(target=print)\n", "dies in silence"),
        ("store/utils.py", "", "name the module for the thing it holds"),
        ("helpers/scan.py", "", "name the module for the thing it holds"),
    ],
)
def test_rule_fires(path, source, sentence):
    """A file that breaks a rule is found, with the remedy."""
    assert sentence in sentences(f"src/quiver/{path}", source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("store/store.py", "\n".join(f"x{n} = {n}" for n in range(600)) + "\n"),
        ("store/format/cursor.py", "import struct\nfrom quiver.primitives.scan import Frame\n"),
        ("store/format/cursor.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n"),
        ("store/store.py", "from quiver.primitives import lock\nfrom quiver.errors import QuiverError\n"),
        ("store/store.py", "text.replace('a', 'b')\ndataclasses.replace(x, y=1)\nfs.rename('a', 'b')\n"),
        ("primitives/disk/real_files.py", "import mmap\nimport os\nos.fsync(3)\nos.replace('a', 'b')\n"),
        ("primitives/checksum.py", "def f():\n    from awscrt import checksums\n"),
        ("cli/main.py", "def f():\n    from quiver.cli import stats\n"),
        ("receivers/otlp/http_receiver.py", "async def f(): ...\n"),
        ("spark/spark_session.py", "import os\nos.environ['JAVA_HOME']\n"),
        ("primitives/worker.py", "import threading\nthreading.Thread(target=print)\n"),
        ("spark/store/read_partition.py", "def f():\n    import pyspark\n"),
    ],
)
def test_rule_permits(path, source):
    """Code that a rule permits is not found."""
    assert sentences(f"src/quiver/{path}", source) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# TO" + "DO later", "nothing unfinished is merged"),
        ("raise NotImplemented" + "Error", "nothing unfinished is merged"),
        ("cd /wo" + "rk/main", "a path of one machine"),
        ("see `/fa" + "rm/in`", "a path of one machine"),
        ("/ho" + "me/somebody/x", "a path of one machine"),
        ("https://py" + "pi.org/simple", "no download hosts"),
        ("--index-url https://files.python" + "hosted.org", "no download hosts"),
        ("see iss" + "ue 3", "a number means nothing"),
        ("as DES" + "IGN §3 says", "that page is not in this repository"),
    ],
)
def test_text_rule_fires(text, sentence):
    """Forbidden words are found with their line, in any file."""
    (finding,) = tidy.text_rules("requirements.lock", f"first line\n{text}\n")

    assert finding.line == 2
    assert sentence in finding.sentence


@pytest.mark.parametrize("text", ["framework/main", "https://example.com/wo" + "rk/x", "a mastodon"])
def test_text_rule_permits(text):
    """Similar words are not found."""
    assert list(tidy.text_rules("a.txt", text)) == []


def test_page_begins_with_title():
    """A Markdown page without a title is found."""
    assert list(tidy.text_rules("docs/a.md", "# Title\n")) == []
    assert [str(f) for f in tidy.text_rules("docs/a.md", "Text\n")] == ["docs/a.md:1: a page begins with its title"]


def test_format_and_page_belong_together():
    """A format without a page, a page without a module, and a page naming a missing module are found."""
    found = tidy.page_rules(
        {
            "src/quiver/store/format/__init__.py": "",
            "src/quiver/store/format/cursor.py": "",
            "src/quiver/store/format/floor.py": "",
            "docs/formats/README.md": "# Formats\n",
            "src/quiver/otap/views/view.py": "",
            "docs/formats/cursor.md": "# Cursor\nIn `store/format/cursor.py`, see `tests/test_cursor.py`.\n",
            "docs/formats/views.md": "# Views\nMade by `quiver.otap.views.view`.\n",
            "docs/formats/gone.md": "# Gone\nsrc/quiver/store/format/cursor.py src/quiver/store/format/gone.py\n",
            "docs/formats/silent.md": "# Silent\n",
        }
    )

    assert {
        "src/quiver/store/format/floor.py:1: a format has a page: name this file in docs/formats",
        "docs/formats/gone.md:1: the page names src/quiver/store/format/gone.py, which is not there",
        "docs/formats/silent.md:1: a format page names its module, as store/format/….py",
    } == set(map(str, found))


def test_broken_link_is_found():
    """A relative link must lead to a file or a folder; external links are not followed."""
    found = tidy.link_rules(
        {
            "README.md": "# R\n[a](docs/a.md) [b](docs/) [c](https://example.com/) [d](#part)\n[e](docs/b.md#x)\n",
            "docs/a.md": "# A\n[up](../README.md) [same](a.md)\n",
        }
    )

    assert list(map(str, found)) == ["README.md:3: the link to docs/b.md leads nowhere"]


def modules(files: dict[str, str]) -> dict[str, tidy.Module]:
    """The modules of an invented tree."""
    return {path: tidy.Module(path, text) for path, text in files.items()}


def test_worker_that_loads_the_engine_is_found():
    """Spark code that loads the engine through another module is found, with the chain of imports."""
    found = tidy.worker_rules(
        modules(
            {
                "src/quiver/spark/store/read_partition.py": "from quiver.store.reading.read import read\n",
                "src/quiver/spark/cast.py": "from quiver.store.segment import reader\n",
                "src/quiver/store/reading/read.py": "from quiver.store.store import Store\n",
                "src/quiver/store/segment/reader.py": "import quiver.errors\n",
            }
        )
    )

    way = "quiver.spark.store.read_partition → quiver.store.reading.read → quiver.store.store"
    assert [
        f"src/quiver/spark/store/read_partition.py:1: Spark reads files by path and never loads the engine ({way})"
    ] == list(map(str, found))


def test_a_reader_that_loads_its_engine_is_found():
    found = tidy.reader_rules(
        modules(
            {
                "src/quiver/aof/reading/files.py": "from quiver.aof.status import status\n",
                "src/quiver/aof/status.py": "def f():\n    from quiver.aof.append.tail import Tail\n",
                "src/quiver/aof/append/tail.py": "",
                "src/quiver/topics/reading/file_reader.py": "from quiver.topics.wal.files import WalFile\n",
                "src/quiver/topics/wal/files.py": "if TYPE_CHECKING:\n    from quiver.topics.log import TopicLog\n",
                "src/quiver/store/recovery.py": "from quiver.store.store import Store\n",
            }
        )
    )

    way = "quiver.aof.reading.files → quiver.aof.status → quiver.aof.append.tail"
    assert list(map(str, found)) == [
        f"src/quiver/aof/reading/files.py:1: readers work from files alone and never load the engine ({way})"
    ]


def test_circles_that_exist_only_for_types_are_found():
    tree = {
        "src/quiver/aof/__init__.py": "if TYPE_CHECKING:\n    from quiver.aof.log import Aof\n",
        "src/quiver/aof/log.py": "from quiver.aof import tail\n",
        "src/quiver/aof/tail.py": "if TYPE_CHECKING:\n    from quiver.aof.log import Aof\n",
    }

    way = "quiver.aof.log → quiver.aof.tail → quiver.aof.log"
    sentence = f"modules depend on each other in a circle: cut one of the imports ({way})"
    assert list(map(str, tidy.coupling_rules(modules(tree), ()))) == [f"src/quiver/aof/log.py:1: {sentence}"]
    assert list(tidy.coupling_rules(modules(tree), {("quiver.aof.tail", "quiver.aof.log")})) == []


def test_a_removed_circle_must_leave_the_list():
    found = tidy.coupling_rules(modules({"src/quiver/aof/tail.py": ""}), {("quiver.aof.tail", "quiver.aof.log")})

    sentence = "it no longer imports quiver.aof.log: remove that from KNOWN_CIRCLES"
    assert list(map(str, found)) == [f"src/quiver/aof/tail.py:1: {sentence}"]


def test_modules_that_import_each_other_are_found():
    """Also a package that imports its own modules; imports for type checkers or on first use are permitted."""
    found = tidy.circle_rules(
        modules(
            {
                "src/quiver/__init__.py": "from quiver.lazy_names import lazy_names\n",
                "src/quiver/lazy_names.py": "import sys\n",
                "src/quiver/aof/__init__.py": "from quiver.aof.log import Aof\n",
                "src/quiver/aof/log.py": "import quiver.clock\n",
                "src/quiver/clock.py": "",
                "src/quiver/qwp/__init__.py": "if TYPE_CHECKING:\n    from quiver.qwp.sender import Sender\n",
                "src/quiver/qwp/sender.py": "def f():\n    from quiver.qwp.slots.slot import Slot\n",
                "src/quiver/qwp/slots/slot.py": "from quiver.qwp import Sender\n",
                "src/quiver/topics/log.py": "from quiver.topics.wal import writer\n",
                "src/quiver/topics/wal/writer.py": "from quiver.topics import reader\n",
                "src/quiver/topics/reader.py": "from quiver.topics.log import TopicLog\n",
            }
        )
    )

    around = ("log", "wal.writer", "reader", "log")
    deadlock = "modules import each other in a circle, and threads that do so first deadlock"
    assert list(map(str, found)) == [
        f"src/quiver/aof/__init__.py:1: {deadlock} (quiver.aof → quiver.aof.log → quiver.aof)",
        f"src/quiver/topics/log.py:1: {deadlock} ({' → '.join(f'quiver.topics.{name}' for name in around)})",
    ]


def test_module_without_imports_is_found():
    """A module is used if it is imported, or named by a test or an entry point; a page does not count."""
    files = {
        "src/quiver/store/wal/scan.py": "from quiver.store.wal import replay\n",
        "src/quiver/store/wal/replay.py": "",
        "src/quiver/cli/main.py": "",
        "src/quiver/cli/stats/commands.py": "",
        "src/quiver/testing/crashfs.py": "",
        "tests/test_wal.py": "from quiver.store.wal.scan import scan\nfrom quiver.testing import (\n    crashfs,\n)\n",
        "pyproject.toml": 'quiver = "quiver.cli.main:main"',
        "docs/cli.md": "# quiver.cli.stats.commands\n",
    }

    found = tidy.dead_rules(modules({path: text for path, text in files.items() if path.startswith("src")}), files)

    assert [finding.path for finding in found] == ["src/quiver/cli/stats/commands.py"]


def test_files_are_those_that_git_would_track(tmp_path: Path):
    """Ignored files are skipped, untracked ones are read, large ones are found."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("dist/\n")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "x.txt").write_text("ignored")
    (tmp_path / "new.txt").write_text("untracked")
    (tmp_path / "bytes.bin").write_bytes(b"\x00\xff")
    (tmp_path / "large.bin").write_bytes(bytes(tidy.FILE_BYTES_MAX + 1))

    files, findings = tidy.read_tree(tmp_path)

    assert {".gitignore", "new.txt"} == set(files)
    assert [finding.path for finding in findings] == ["large.bin"]


def test_two_test_modules_of_one_name_are_found():
    """Pytest can collect only one of them."""
    found = tidy.test_name_rules(
        {"tests/a/test_x.py": "", "tests/b/test_x.py": "", "tests/b/rig.py": "", "tests/rig.py": ""}
    )
    assert [(finding.path, finding.line) for finding in found] == [("tests/b/test_x.py", 1)]


def test_a_helper_that_three_test_modules_define_is_found():
    helper = "def {name}({names}):\n    return open_store({argument})\n"
    same = {
        "tests/a/test_a.py": helper.format(name="opened", names="fs", argument="fs"),
        "tests/b/test_b.py": '"""Tests."""\n' + helper.format(name="opened", names="fs: Any", argument="fs"),
        "tests/b/test_c.py": helper.format(name="made", names="fs", argument="fs"),
        "tests/b/test_d.py": helper.format(name="opened", names="root", argument="root"),
        "src/quiver/a.py": helper.format(name="opened", names="fs", argument="fs"),
    }
    assert [(finding.path, finding.line, finding.sentence) for finding in tidy.test_copy_rules(same)] == [
        ("tests/b/test_c.py", 1, "made is also defined in tests/a/test_a.py and tests/b/test_b.py: share it")
    ]
    del same["tests/a/test_a.py"]
    assert list(tidy.test_copy_rules(same)) == []


def test_a_folder_with_too_many_modules_is_found():
    files = {f"src/quiver/store/m{number}.py": "" for number in range(21)}
    files |= {f"tests/store/test_{number}.py": "" for number in range(20)}
    files |= {f"bench/b{number}.py": "" for number in range(22)}

    assert [(found.path, found.sentence.partition(";")[0]) for found in tidy.folder_rules(files)] == [
        ("bench", "22 modules"),
        ("src/quiver/store", "21 modules"),
    ]


def test_a_number_of_two_decisions_and_an_unlisted_decision_are_found():
    files = {
        "docs/decisions/0001-a.md": "",
        "docs/decisions/0001-b.md": "",
        "docs/decisions/0002-c.md": "",
        "docs/decisions/README.md": "[0001](0001-a.md) [0001](0001-b.md)",
    }

    assert [(found.path, found.sentence.partition(":")[0]) for found in tidy.decision_rules(files)] == [
        ("docs/decisions/0001-a.md", "number 0001 is used twice"),
        ("docs/decisions/0001-b.md", "number 0001 is used twice"),
        ("docs/decisions/0002-c.md", "the decision is not listed"),
    ]


def test_idioms_above_the_rate_of_other_libraries_are_found():
    plain = '"""' + "Return the number of bytes. " * 2500 + '"""\n'
    odd = plain + '"""Nobody knows."""\n'

    assert list(tidy.word_rules({"src/quiver/a.py": plain})) == []
    for path in ("src/quiver/a.py", "tests/test_a.py"):
        (found,) = tidy.word_rules({path: odd})
        assert found.sentence.startswith("nobody, somebody, anybody")


def test_words_of_pages_are_counted_without_code():
    """Pages have the same limits; code, link targets and the changelog do not count."""
    plain = "# Title\n\n" + "A plain word.\n" * (tidy.WORDS_MIN // 3)
    quoted = plain + "\n```\nnobody\n```\n\n`nobody` and [a page](nobody.md)\n"
    odd = plain + "\n- Nobody knows.\n"

    assert list(tidy.word_rules({"docs/a.md": quoted, "CHANGELOG.md": odd})) == []
    for page in ("docs/a.md", "docs/decisions/b.md", "README.md"):
        (found,) = tidy.word_rules({page: odd})
        assert found.sentence.startswith("nobody, somebody, anybody")


def test_passages_of_pages_begin_at_headings_items_and_rows():
    """A sentence that opens with "What" is found at the start of a passage, not at the start of a line."""
    text = "## What it is\nText that asks\nWhat follows\n- What else\n| What | for |\n"

    _, words = tidy.rates(tidy.page_prose(text))
    found = [passage for _, passage in tidy.page_prose(text)]

    assert words == 12
    assert found == ["What it is\nText that asks\nWhat follows", "What else", " What | for |"]


def test_limits_on_the_kernel_are_checked():
    """Long C functions, files, and too much C altogether are found; tables and prototypes are not functions."""
    function = "static int f(void) {\n" + "    x();\n" * 69 + "}\n"
    table = "int f(void);\n\nstatic int TABLE[] = {\n" + "    1,\n" * 10 + "};\n"

    assert [finding.line for finding in tidy.c_rules({"kernel/a.c": table + function})] == [15]
    assert not list(tidy.c_rules({"kernel/a.c": table + function.replace("    x();\n", "", 1)}))
    long = {f"kernel/{name}.c": "int x;\n" * 600 for name in "abc"}
    assert [finding.path for finding in tidy.c_rules(long)] == ["kernel"]
    assert [finding.path for finding in tidy.c_rules({"kernel/a.h": "int x;\n" * 601})] == ["kernel/a.h"]
