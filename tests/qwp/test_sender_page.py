"""docs/howto/qwp.md documents the sender: every key with its default, every property, every category."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quiver.qwp import Category, Policy, Sender, SenderSettings
from quiver.qwp.connection.session import DEFAULT_POLICIES
from quiver.qwp.settings import _KEYS, _POLICIES, IGNORED_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "qwp.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"### {title}\n")[1].split("\n### ")[0].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of each row of a section's table."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines][1:]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w*]+)`", cell)


def test_every_key_is_documented():
    """No unknown key is on the page."""
    reported = {name for key, _, _ in rows("Keys") for name in names(key)}
    reported |= {name for _, _, text in rows("Keys") for name in re.findall(r"Also called `(\w+)`", text)}
    assert reported == {*_KEYS, *_POLICIES, "addr", "on_server_error"}
    rest = section("Keys").rpartition("|\n")[2]
    for pattern in names(rest):
        if not pattern.startswith("quiver_"):
            assert any(re.fullmatch(pattern.replace("*", ".*"), key) for key in IGNORED_KEYS), pattern


@pytest.mark.parametrize("row", rows("Keys"), ids=lambda row: row[0])
def test_the_documented_default_is_the_default(row):
    """Setting it explicitly changes nothing."""
    plain = SenderSettings.from_conf("ws::addr=h:1;sf_dir=/x;")
    for key in names(row[0]):
        match = re.match(r"`([^`]+)`", row[1])
        if match is None or key == "tls_verify":
            continue  # required, none, or the system's; or only for wss
        name, parse = _KEYS.get(key, (None, None))
        if name in {None, "auto_flush", "bytes_max"}:
            more = f"sf_dir=/x;{key}={match[1]};" if key != "sf_dir" else ""
            assert SenderSettings.from_conf(f"ws::addr=h:1;{more}").ring == plain.ring
        else:
            assert parse(key, match[1]) == getattr(plain, name), key
    assert SenderSettings.from_conf("ws::addr=h:1;sf_max_total_bytes=128M;").ring == (
        SenderSettings.from_conf("ws::addr=h:1;").ring
    )


def test_every_category_is_documented_with_its_policy():
    """And with the key that changes the policy."""
    words = {"dropped": Policy.DROP, "halt": Policy.HALT, "sent": Policy.RETRY}
    reported = {names(category)[0]: (words[policy.split()[0].strip(",")], names(key)) for _, category, policy, key in
            rows("Refused frames")}  # fmt: skip
    assert set(reported) == {category.value for category in Category}
    for category in Category:
        policy, keys = reported[category.value]
        assert policy is DEFAULT_POLICIES.get(category, Policy.HALT)
        assert keys == [key for key, known in _POLICIES.items() if known is category]


def test_every_property_is_documented():
    reported = {name for row in rows("Counters and gauges") for name in names(row[0].replace("()", ""))}
    public = {name for name, value in vars(Sender.__mro__[1]).items() if not name.startswith("_")}
    assert reported == public
