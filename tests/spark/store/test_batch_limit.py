"""The number of bundles in a batch of an exporter."""

import pytest

from quiver.spark.exporters import query as export_query


def options_of(monkeypatch: pytest.MonkeyPatch, **more: object) -> dict[str, str]:
    """Return the options of the source of an exporter's query."""
    options_seen: dict[str, str] = {}
    monkeypatch.setattr(export_query, "start_bundle_query", lambda *_, options, **__: options_seen.update(options))
    export_query.start_export(None, "store", "out", object(), checkpoint="notes", **more)
    return options_seen


def test_a_batch_with_processors_is_small(monkeypatch):
    """So small that bad bundles in it can be found, for any backlog; an explicit limit takes precedence."""
    through = {"chain": [lambda frame: frame], "around": lambda export: export}
    assert options_of(monkeypatch, **through) == {"maxBundlesPerTrigger": str(export_query.BATCH_BUNDLES_MAX)}
    assert options_of(monkeypatch, **through, options={"maxBundlesPerTrigger": "7"}) == {"maxBundlesPerTrigger": "7"}


def test_other_batches_have_no_limit(monkeypatch):
    """Without processors nothing is bisected, and without a filter nothing is retried."""
    assert options_of(monkeypatch, around=lambda export: export) == {}
    assert options_of(monkeypatch, chain=[lambda frame: frame]) == {}
