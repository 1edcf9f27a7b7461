"""Code, options and names in the pages are correct."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import site_pages
from quiver.store.reading.stream_options import parse_options

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/index.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/howto/*.md"))]
TUTORIALS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/tutorials/*.md"))
OUTPUT = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    """
    The Python of a page runs from top to bottom; code that starts Spark is only compiled. A text block directly after
    it is its output.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    outputs = dict(OUTPUT.findall((ROOT / page).read_text(encoding="utf-8")))
    for number, source in enumerate(blocks(page, "python")):
        code = compile(source, f"{page}, block {number}", "exec")
        if "quiver.spark" not in source:
            exec(code, names)
            printed = capsys.readouterr().out
            assert outputs.get(source, printed) == printed
    assert page != "README.md" or len(outputs) == 2


def test_pipeline_of_the_howto_is_valid(tmp_path):
    """The pipeline file of the OTLP page is accepted."""
    from quiver.pipeline.processes.child import read_pipeline

    (source,) = blocks("docs/howto/otlp.md", "yaml")
    path = tmp_path / "pipeline.yaml"
    path.write_text(source)

    pipeline = read_pipeline(path, [], {})

    assert [name for name, _ in pipeline.receivers] == ["otlp_receiver"]


def test_pipeline_of_the_routing_page_is_valid(tmp_path):
    """Each exporter takes the signals that the page names; the other two forms of `signals` give the same routes."""
    from quiver.pipeline.processes.child import read_pipeline

    source, ports, connections = blocks("docs/howto/routing.md", "yaml")[:3]
    path = tmp_path / "pipeline.yaml"
    path.write_text(source)
    routes = {name: route.signals for name, route in read_pipeline(path, [], {}).routes.items()}
    assert routes == {"log_backend": ("logs",), "trace_backend": ("traces", "metrics"), "archive": None}

    plain = re.sub(r", signals: \[.*?\]", "", source)
    one_port = "    out_ports: {out_port: {destinations: [log_backend, trace_backend, archive]}}\n"
    with_ports = plain.replace(one_port, ports)
    assert with_ports.count("signals") == 2
    path.write_text(with_ports)
    by_port = {name: route.signals for name, route in read_pipeline(path, [], {}).routes.items()}
    assert by_port == routes | {"archive": ("traces", "metrics")}

    later = yaml.safe_load(plain)["nodes"]
    nodes = {name: {"type": node["plugin_urn"], "config": node["config"]} for name, node in later.items()}
    listed = [{"from": "otlp_receiver", "to": "buffer"}, *yaml.safe_load(connections)["connections"]]
    pipeline = {"nodes": nodes, "connections": listed}
    file = {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": pipeline}}}}
    path.write_text(yaml.safe_dump(file))
    assert {name: route.signals for name, route in read_pipeline(path, [], {}).routes.items()} == by_port


def test_pipelines_of_the_tables_page_are_valid(tmp_path):
    """Each file of the page is accepted, and says where its tables are."""
    from quiver.pipeline.processes.child import read_pipeline

    found = []
    for source in blocks("docs/howto/tables.md", "yaml"):
        path = tmp_path / "pipeline.yaml"
        path.write_text(source)
        found += [config.destination for _, config in read_pipeline(path, [], {}).exporters]
    assert [text.partition(" below ")[0] for text in found] == ["Delta tables", "Iceberg tables"]


def test_options_of_the_howto_exist():
    """Every option that the Spark page names is known to the source."""
    table = (ROOT / "docs/howto/spark.md").read_text().partition("## Options")[2].partition("## Worth")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    options = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]

    assert len(options) == 25
    for name in options:
        with pytest.raises(Exception, match=r"^(?!unknown option)"):
            parse_options({name: ""})


def test_extras_of_the_pages_exist():
    """Every extra that a page names is in pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        name
        for page in [*PAGES, *TUTORIALS]
        for found in re.findall(r"arrow-quiver\[([\w,]+)\]", (ROOT / page).read_text())
        for name in found.split(",")
    }

    assert named
    assert named <= set(extras)


def test_targets_of_the_pages_exist():
    """Every `make` target that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [*PAGES, "CONTRIBUTING.md", "ARCHITECTURE.md"]
    named = {
        name for page in pages for name in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)
    }

    assert {"demo", "test", "lint"} <= named
    assert named <= targets


def test_every_page_is_in_the_site():
    """Each page is in the navigation once, except formats and decisions, which their index pages list."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = re.findall(r"([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    ours = {page for page in pages if not re.match(r"(decisions|formats)/(?!README)", page)}
    assert sorted(listed) == sorted({*ours, *site_pages.PAGES, site_pages.EXAMPLES})


@pytest.mark.parametrize(
    ("target", "page", "link"),
    [
        ("../../ARCHITECTURE.md#packages", "howto/spark.md", "../ARCHITECTURE.md#packages"),
        ("docs/howto/", "ARCHITECTURE.md", "howto/README.md"),
        ("docs/glossary.md", "CONTRIBUTING.md", "glossary.md"),
        ("../../examples/otel_sdk.py", "howto/otel-sdk.md", "../examples.md#otel_sdk.py"),
        ("../examples", "index.md", "examples.md"),
        ("../../src/quiver/store/store.py", "formats/wal.md", None),
        ("wal.md#entries", "formats/cursor.md", "wal.md#entries"),
        ("#here", "metrics.md", "#here"),
        ("https://example.org/a.md", "metrics.md", "https://example.org/a.md"),
    ],
)
def test_links_are_rewritten_for_the_site(target, page, link):
    """To files that the site does not have, no link is left; links in code are not changed."""
    assert site_pages.site_link(target, page) == link
    text = f"see [`this`]({target})\n\n```python no-run\n[x]({target})\n```"
    first = "see `this`" if link is None else f"see [`this`]({link})"
    assert site_pages.site_markdown(text, page) == f"{first}\n\n```python\n[x]({target})\n```"


def test_files_of_the_architecture_exist():
    """Every file that ARCHITECTURE.md names exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text))
    everything = {
        str(path.relative_to(ROOT)) for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")
    }

    assert named
    assert (
        sorted(name for name in named if not any(path.endswith(f"/{name}") or path == name for path in everything))
        == []
    )


def test_functions_of_the_architecture_exist():
    """Every function that ARCHITECTURE.md names after a file is in that file."""
    pairs = re.findall(r"`([a-z_/]+\.py)`: `(\w+)`", (ROOT / "ARCHITECTURE.md").read_text())

    assert len(pairs) > 5
    for name, function in pairs:
        (path,) = (ROOT / "src").rglob(f"quiver/{name}")
        assert f"def {function}(" in path.read_text(), f"{name}: {function}"


def test_long_modules_exist():
    """A module that was renamed would run in `make test-fast` again."""
    named = (ROOT / "tests" / "long_modules.txt").read_text(encoding="utf-8").split()

    assert named == sorted(set(named))
    assert [name for name in named if not (ROOT / name).is_file()] == []
