"""
How long the marked lanes run. The default of each is what the lane promises; a smaller number is for a quick look.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quiver", "how much the marked lanes do")
    group.addoption("--kill-cycles", type=int, default=10_000, help="fork-and-kill cycles of the kill lane")
    group.addoption("--crash-states", type=int, default=1_000_000, help="enumerated states of the crash_states lane")
    group.addoption("--workers", type=int, default=2, help="processes that share the crash states")
