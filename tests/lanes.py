"""
The part of an exhaustive test that runs in the default suite; `make test-slow` runs all of it.

The part is another one in every run: its first step and the examples of a model are random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

Item = TypeVar("Item")


def with_stride(stride: int) -> pytest.MarkDecorator:
    """Return a mark that passes `stride` to a test: *stride* in the default suite, and 1 in `make test-slow`."""
    return pytest.mark.parametrize("stride", [stride, pytest.param(1, marks=pytest.mark.slow)])


def every(stride: int, items: Sequence[Item]) -> Sequence[Item]:
    """Return every *stride*-th item from a random one on, at least one of them."""
    return items[random.randrange(max(1, min(stride, len(items)))) :: stride]


def model_tests(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> tuple[Any, Any]:
    """Return the test of a model with so many *examples* of so many *steps*, and one that takes minutes, for `slow`."""
    common: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    short = machine.TestCase
    short.settings = settings(max_examples=examples, stateful_step_count=steps, **common)
    long_settings = settings(max_examples=25 * examples, stateful_step_count=2 * steps, **common)
    long = type(f"{short.__name__}ForLong", (short,), {"settings": long_settings, "__module__": machine.__module__})
    return short, pytest.mark.timeout(1800)(pytest.mark.slow(long))
