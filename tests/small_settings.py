"""Settings of a store that is small enough for a test."""

from collections.abc import Mapping

from quiver.settings import Settings


def small_settings(small: Mapping[str, object], changes: Mapping[str, object] | None = None) -> Settings:
    """What *small* says, with *changes*; nothing about a log where there is none, for that is refused."""
    given = {**small, **(changes or {})}
    if given.get("durability") == "segment_only":
        given = {name: value for name, value in given.items() if not name.startswith("wal_")}
    return Settings(**given)  # type: ignore[arg-type]
