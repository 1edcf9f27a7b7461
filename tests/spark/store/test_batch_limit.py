"""How many bundles a batch of an exporter may have."""

import pytest

from quiver.spark.exporters import query as export_query


def options_of(monkeypatch: pytest.MonkeyPatch, **more: object) -> dict[str, str]:
    """What the source of an exporter's query is told."""
    told: dict[str, str] = {}
    monkeypatch.setattr(export_query, "start_bundle_query", lambda *_, options, **__: told.update(options))
    export_query.start_export(None, "store", "out", object(), checkpoint="notes", **more)
    return told


def test_a_batch_that_processors_may_fail_on_stays_small(monkeypatch):
    """So small that what fails in it can be told apart, whatever the backlog is; who names a limit has that one."""
    through = {"chain": [lambda frame: frame], "around": lambda export: export}
    assert options_of(monkeypatch, **through) == {"maxBundlesPerTrigger": str(export_query.BATCH_BUNDLES_MAX)}
    assert options_of(monkeypatch, **through, options={"maxBundlesPerTrigger": "7"}) == {"maxBundlesPerTrigger": "7"}


def test_other_batches_are_as_large_as_they_come(monkeypatch):
    """Without processors nothing is halved, and without a sieve nothing is set aside."""
    assert options_of(monkeypatch, around=lambda export: export) == {}
    assert options_of(monkeypatch, chain=[lambda frame: frame]) == {}
