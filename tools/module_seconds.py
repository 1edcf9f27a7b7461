"""
A plugin of pytest that prints the seconds of all tests of each folder and of the longest modules.

`make test PYTEST_ARGS="-p module_seconds"` shows which modules belong in `tests/long_modules.txt`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

MODULE_SECONDS_MIN = 3.0


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sums of setup, call and teardown."""
    modules: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                modules[report.nodeid.partition("::")[0]] += report.duration
    folders: dict[str, float] = defaultdict(float)
    for path, seconds in modules.items():
        folders["/".join(path.split("/")[:2])] += seconds
    terminalreporter.section("seconds of folders and modules")
    for path, seconds in _longest_first(folders):
        terminalreporter.line(f"{seconds:8.1f} {path}")
    terminalreporter.line(f"{sum(folders.values()):8.1f} together; modules of {MODULE_SECONDS_MIN} s and more:")
    for path, seconds in _longest_first(modules):
        if seconds >= MODULE_SECONDS_MIN:
            terminalreporter.line(f"{seconds:8.1f} {path}")


def _longest_first(found: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(found.items(), key=lambda one: -one[1])
