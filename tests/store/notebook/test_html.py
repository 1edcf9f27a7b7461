"""Stores, readers, scans and bundles show themselves in a notebook."""

import re

import pyarrow as pa
import pytest

import quiver
from quiver.html_tables import facts_html, rows_html, section_html
from quiver.store.opening import open_store


def rows(count=3, **columns):
    return pa.record_batch({"n": pa.array(range(count))} | {name: [value] * count for name, value in columns.items()})


def text_of(html):
    """The text of HTML whose tags are balanced."""
    opened = re.findall(r"<(\w+)[^>]*>", html)
    closed = re.findall(r"</(\w+)>", html)
    assert sorted(opened) == sorted(closed)
    return re.sub(r"<[^>]*>", " ", html)


@pytest.mark.parametrize("cores", [None, 2])
def test_a_store_shows_figures_and_subscribers(tmp_path, cores):
    """Open and closed; a notebook often shows a store that was closed."""
    how = {} if cores is None else {"cores": cores}
    with quiver.open(tmp_path / "store", background=False, **how) as store:
        store.register("lake", start="earliest")
        store.ingest(quiver.Bundle({"logs": rows()}))
        store.seal()
        shown = text_of(store._repr_html_())
        assert str(tmp_path / "store") in shown
        assert re.search(r"segments +1 ", shown)
        assert re.search(r"lake +1 ", shown)
        assert ("cores" in shown) == (cores is not None)
    assert "closed" in text_of(store._repr_html_())


def test_a_reader_shows_its_contents(tmp_path):
    with open_store(tmp_path / "store", background=False) as store:
        store.ingest(quiver.Bundle({"logs": rows()}))
        store.seal()
    with quiver.read(tmp_path / "store") as reader:
        shown = text_of(reader._repr_html_())
    assert re.search(r"segments +1 +bundles +1 ", re.sub(r" +", " ", shown))
    assert "KiB" in shown or " B " in shown


def test_a_scan_shows_its_first_rows_only(tmp_path):
    """A notebook that shows a scan must not read a complete store. At most twelve columns are shown."""
    with open_store(tmp_path / "store", background=False) as store:
        wide = {f"column_{number:02}": number for number in range(20)}
        store.ingest(quiver.Bundle({"logs": rows(1000, text="<script>alert(1)</script>", **wide)}))
        scan = store.scan("logs")
        html = scan._repr_html_()
    shown = text_of(html)
    assert "The first 5 rows, without 10 columns" in shown
    assert html.count("<tr>") == 6
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_bundle_shows_its_slots():
    shown = text_of(quiver.Bundle({"logs": rows(3, name="x")})._repr_html_())
    assert re.search(r"30 +3 ", shown)
    assert "n, name" in shown


def test_text_is_escaped_and_sizes_have_units():
    assert "&lt;b&gt;" in section_html("<b>")
    assert "<td style='text-align:left;vertical-align:top'>1.5 MiB</td>" in facts_html({"segment_bytes": 1536 * 1024})
    assert facts_html({"missing": None}) == "<table></table>"
    assert rows_html([]) == ""
    assert "1,234" in rows_html([{"count": 1234}])
    assert text_of(rows_html([{"value": "x" * 500}])).strip().endswith("…")


def test_a_damaged_store_is_shown_with_its_problem(tmp_path):
    """In place of a traceback."""
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "0000000000000000.qseg").write_bytes(b"junk" * 100)
    shown = text_of(quiver.read(tmp_path)._repr_html_())
    assert "problem" in shown
