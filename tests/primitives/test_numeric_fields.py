"""Every numeric setting is a number, or is refused with its name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from quiver import Settings
from quiver.errors import SettingsError
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.qwp.settings import QwpSettings
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings
from quiver.topics import settings as topics

CLASSES = (
    Settings,
    OtlpSettings,
    KeepaliveSettings,
    OtapSettings,
    QwpSettings,
    topics.WalSettings,
    topics.UploaderSettings,
    topics.DeleterSettings,
    topics.SubscriptionSettings,
)
NUMBERS = [(cls, field) for cls in CLASSES for field in fields(cls) if field.type.startswith(("int", "float"))]


@pytest.mark.parametrize(("cls", "field"), NUMBERS, ids=lambda one: one.__name__ if isinstance(one, type) else one.name)
def test_other_values_are_refused_with_the_name(cls, field):
    """Also values that Python would accept: a bool, another type, a text with a unit."""
    for value in ("1GB", True, float("nan"), [1]):
        with pytest.raises(SettingsError, match=f"{field.name} must be a "):
            cls(**{field.name: value})
    if field.type.startswith("int"):
        with pytest.raises(SettingsError, match=f"{field.name} must be a whole number, not 1e"):
            cls(**{field.name: 1e30})


def test_none_is_refused_where_it_has_no_meaning():
    """It is accepted where it means no limit."""
    with pytest.raises(SettingsError, match="segment_bytes_max must be a whole number, not None"):
        Settings(segment_bytes_max=None)
    assert Settings(size_cap_bytes=None, max_age_s=3).max_age_s == 3
