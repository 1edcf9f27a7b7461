"""The benchmark of topics completes with tiny sizes, and shows the requested rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_bench_scripts import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_topics_shows_every_setting(tmp_path):
    """Reading, following and many topics, each next to its lower bound."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- topics -->\nold\n<!-- end topics -->\n")
    script = ROOT / "bench" / "topics.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--only", "read", "tail", "topics", "--write", str(page)],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "old" not in text
    rows = [
        line.split("|")[3].strip() for line in text.splitlines() if line.startswith(("| read", "| tail", "| topics"))
    ]
    assert rows == [
        "Quiver topic", "bare framed log", "no follower", "one follower", "four followers", "200 topics", "one topic",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [page]
