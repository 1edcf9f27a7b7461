"""The values of `explain` in words, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quiver.pipeline.config.formatting import duration_words, size_words

__all__ = ["in_words"]


def in_words(node: Mapping[str, Any]) -> dict[str, str]:
    """Return label → text for the values that describe a node; values that are missing or empty are left out."""
    found: dict[str, str] = {}
    for key, value in node.items():
        if value is None or value == [] or value is False:
            continue
        if key == "retry":
            found["retry"] = _retry(value)
        elif key == "dead_letters":
            found["dead letters"] = _dead_letters(value)
        elif key == "object_tier":
            found["object tier"] = _tier(value)
        else:
            label, text = _quantity(key, value)
            found[label.replace("_", " ")] = text
    return found


def _quantity(key: str, value: Any) -> tuple[str, str]:
    if key.endswith("_bytes"):
        return key.removesuffix("_bytes"), size_words(value)
    if key.endswith("_s"):
        return key.removesuffix("_s"), duration_words(value)
    if value is True:
        return key, "yes"
    return key, ", ".join(value) if isinstance(value, list) else str(value)


def _dead_letters(values: Mapping[str, Any]) -> str:
    full = "the oldest are dropped" if values["when_full"] == "drop_oldest" else "bundles stay in the buffer"
    age = "" if values["keeps_at_most_s"] is None else f"for {duration_words(values['keeps_at_most_s'])}, "
    by = "when the exporter has recovered" if values["replay"] == "auto" else "manually"
    return f"{age}up to {size_words(values['holds_at_most_bytes'])}, then {full}; replayed {by}"


def _retry(values: Mapping[str, Any]) -> str:
    words = _retry_words(values)
    alone = values.get("of_one_bundle")
    if alone is None:
        return words
    return f"{words}; a bundle that a processor fails on is retried individually, {_retry_words(alone)}"


def _retry_words(values: Mapping[str, Any]) -> str:
    bounds = []
    if values["max_attempts"] is not None:
        bounds.append(f"{values['max_attempts']} attempts")
    if values["max_elapsed_s"] is not None:
        bounds.append(duration_words(values["max_elapsed_s"]))
    letter = "is kept as a dead letter"
    if values["dead_letters_in_memory"]:
        letter = f"{letter} in memory while the pipeline runs"
    then = {"dead_letter": letter, "drop": "is dropped and counted", "halt": "stops the exporter"}
    first, most = duration_words(values["initial_interval_s"]), duration_words(values["max_interval_s"])
    until = f", for at most {' or '.join(bounds)}" if bounds else ", without limit"
    return f"after {first}, later up to {most}{until}; permanently refused data {then[values['on_exhausted']]}"


def _tier(values: Mapping[str, Any]) -> str:
    kept = []
    if values["also_on_disk_bytes"] is not None:
        kept.append(f"the newest {size_words(values['also_on_disk_bytes'])}")
    if values["also_on_disk_s"] is not None:
        kept.append(f"data younger than {duration_words(values['also_on_disk_s'])}")
    deleted = (
        "" if values["deleted_after_s"] is None else f"; deleted after {duration_words(values['deleted_after_s'])}"
    )
    fleet = ""
    if values["node_of_a_fleet"] is not None:
        fleet = f"; node {values['node_of_a_fleet']} of a fleet, read by {', '.join(values['read_by'])}"
    return f"{values['url']}; also on the disk: {' of '.join(kept) or 'everything'}{deleted}{fleet}"
