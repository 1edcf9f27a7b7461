"""
How long the marked lanes run, and what may not be spread over processes.

The default of each lane is what the lane promises; a smaller number is for a quick look.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quiver", "how much the marked lanes do")
    group.addoption("--kill-cycles", type=int, default=10_000, help="fork-and-kill cycles of the kill lane")
    group.addoption("--crash-states", type=int, default=1_000_000, help="enumerated states of the crash_states lane")
    group.addoption("--soak-seconds", type=float, default=600.0, help="how long each variant of the soak runs")
    group.addoption("--strace-stride", type=int, default=1, help="fail every n-th system call only")
    group.addoption("--workers", type=int, default=2, help="processes that share the crash states")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One Spark session serves all that need one: they stay together, in one process."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
