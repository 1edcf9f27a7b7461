"""The summary at the top of the page of benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import report as report_module
from report import SUMMARY, BenchParser, Quick, Report, Result

PAGE = f"""# Page

{SUMMARY[0]}
{SUMMARY[1]}

## To read
<!-- read -->
<!-- end read -->

## To write
<!-- write -->
<!-- end write -->
"""


def report(name: str, ours: list[float], rival: list[float], **options: Any) -> Report:
    made = Report(name, "Measured.", "what", "figure")
    made.add(["| a | 1 |"])
    made.compare("batches of 100", Result("Quiver", ours), Result("LMDB", rival), "rows/s", **options)
    return made


def rows(page: Path) -> list[str]:
    summary = page.read_text().split(SUMMARY[0])[1].split(SUMMARY[1])[0]
    return [line for line in summary.splitlines() if line.startswith("| [")]


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.delenv("QUIVER_PURE", raising=False)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_comparison_is_a_row_of_the_summary(page):
    report("read", [2000.0, 3000.0, 4000.0], [1000.0, 2000.0, 1000.0]).finish(page)
    assert rows(page) == [
        "| [To read](#to-read) | batches of 100 | 3,000 rows/s | LMDB: 1,000 | 2.00 | 1.50 to 4.00 |  |",
    ]
    assert "<!-- read -->\nMeasured.\n\n| what | figure |\n|---|---|\n| a | 1 |\n<!-- end read -->" in page.read_text()


def test_a_shorter_time_is_a_ratio_above_one(page):
    report("read", [1.0], [2.0], lower_is_better=True).finish(page)
    assert "| 2.00 | 2.00 to 2.00 |" in rows(page)[0]


def test_rows_are_in_the_order_of_the_page_and_replaced_by_the_next_run(page):
    report("write", [1.0], [1.0]).finish(page)
    report("read", [1.0], [1.0]).finish(page)
    report("write", [4.0], [1.0]).finish(page)
    assert [(row.split(" | ")[0], row.split(" | ")[4]) for row in rows(page)] == [
        ("| [To read](#to-read)", "1.00"),
        ("| [To write](#to-write)", "4.00"),
    ]


def test_rates_without_the_kernel_in_the_same_rounds_add_a_ratio(page):
    report("read", [4.0], [2.0], pure=Result("Quiver, pure", [1.0])).finish(page)
    assert rows(page)[0].endswith("| 2.00 | 2.00 to 2.00 | 0.50 |")


def test_a_run_without_the_kernel_adds_its_ratio_to_the_rows_and_changes_nothing_else(page, monkeypatch):
    report("write", [1.0], [1.0]).finish(page)
    report("read", [4.0], [2.0]).finish(page)
    before = page.read_text()
    monkeypatch.setenv("QUIVER_PURE", "1")
    report("read", [3.0], [2.0]).finish(page)
    assert page.read_text() == before.replace("| 2.00 to 2.00 |  |", "| 2.00 to 2.00 | 1.50 |")
    assert "1.50" in page.read_text()


def test_a_run_without_the_kernel_never_replaces_the_section_of_one_with_it(page, monkeypatch):
    """Also if the section has no rows in the summary."""
    without_rows = Report("read", "Measured.", "what", "figure")
    without_rows.add(["| a | 1 |"])
    without_rows.finish(page)
    before = page.read_text()
    monkeypatch.setenv("QUIVER_PURE", "1")
    pure = Report("read", "Measured.", "what", "figure")
    pure.add(["| a | 2 |"])
    pure.finish(page)
    assert page.read_text() == before


def test_a_run_without_the_kernel_alone_is_written_as_it_is(page, monkeypatch):
    monkeypatch.setenv("QUIVER_PURE", "1")
    report("read", [3.0], [2.0]).finish(page)
    assert rows(page)[0].endswith("| 1.50 | 1.50 to 1.50 |  |")


def test_a_rival_that_was_not_measured_has_no_row(page):
    report("read", [1.0], []).finish(page)
    assert rows(page) == []


def test_a_page_without_a_summary_gets_the_section_only(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.delenv("QUIVER_PURE", raising=False)
    page.write_text("## To read\n<!-- read -->\n<!-- end read -->\n")
    report("read", [1.0], [1.0]).finish(page)
    assert "| [" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "expected"), [([], (5, 1)), (["--quick"], (2, 10)), (["--share", "3", "--rounds", "4"], (4, 3))]
)
def test_options_decide_about_rounds_and_share(monkeypatch, words, expected):
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    options = BenchParser(None, quick=Quick(share=10, rounds=2)).options()
    assert (options.rounds, options.share) == expected


@pytest.mark.parametrize("share", [1, 3, 10, 12])
def test_every_share_of_the_memory_is_touched(monkeypatch, share):
    """Also one that is no multiple of a step: then the last step did not fit, and the script ended."""
    monkeypatch.setattr(report_module, "_share", share)
    monkeypatch.setattr(report_module, "WARM_BYTES", 32 << 20)
    monkeypatch.setattr(report_module, "WARM_BYTES_MIN", 1 << 20)
    report_module.warm_memory()
