"""The benchmarks of decoding and receiving complete with tiny sizes, and show every contender."""

import pytest
from test_bench_scripts import ROOT, column, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]
COLLECTOR = ROOT / "build" / "bin" / "otelcol-rival"


def test_decode_shows_objects_and_columns(tmp_path):
    """Views from requests and from tables, tables from requests, and the parser alone."""
    ways = column(run("decode.py", tmp_path / "page.md"), 1)
    assert ways[0] == "parser alone"
    assert {"view, whole columns", "view, from OTAP tables", "view, objects", "tables, whole columns"} <= set(ways)


def test_receive_shows_every_receiver_in_both_figures(tmp_path):
    """Including the Collector, if it was built."""
    text = run("receive.py", tmp_path / "page.md")
    names = ["pass-through", "convert_to_arrow", "OTAP", "gzip", "ten records"]
    expected = [*names, *(f"{name}, grpcio" for name in names if name != "convert_to_arrow")]
    if COLLECTOR.exists():
        expected += ["Collector, fsync", "Collector, no fsync"]
    assert column(text, 2) == expected * 2
