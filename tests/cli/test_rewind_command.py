"""`quiver subscribers … rewind --to` does what it prints, in both directions; skipped bundles are recorded."""

import json
import shutil

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import BundleRef
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.removal.skips import load_skipped
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set


def bundles_of(store_dir, name, **settings):
    """The first numbers of the bundles that a subscriber gets, in order, before any bundle is added or sealed."""
    with quiver.open(store_dir, quiver.Settings(segment_open_s_max=3600.0, **settings), background=False) as store:
        subscriber = store.register(name)
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append((handle.ref, handle.bundle["logs"]["n"][0].as_py() // 20))
            handle.nack(3600.0)
    return got


def rewound(call, store_dir, name, to, code=0):
    result = call("subscribers", store_dir, "rewind", name, "--to", to, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.output)[0] if code == 0 else result.output


@pytest.fixture
def segments(store_dir):
    """The numbers of the sealed segments, with their bundle counts. The log contains no other bundles."""
    with quiver.open(store_dir, background=False) as store:
        store.seal()
        return {info.seq: info.bundle_count for info in store.internals.catalog.segments()}


def test_moving_forward_skips_and_records_bundles(store_dir, segments, call):
    """`fast` has five; the others before the last segment are never delivered to it. `slow` gets everything."""
    last = max(segments)
    between = sum(segments.values()) - segments[last] - 5
    shown = call("subscribers", store_dir, "rewind", "fast", "--to", last)
    assert f"fast continues at segment {last} and skips {between} bundles" in shown.output.replace("\n", "")
    got = bundles_of(store_dir, "fast")
    assert {ref.segment for ref, _ in got} == {last}
    assert len(got) == segments[last]
    ledger = load_skipped(REAL_FILES, str(store_dir), "fast")
    assert sum(entry.bundle_count for entry in ledger) == between
    assert {entry.reason for entry in ledger} == {"skipped"}
    assert len(bundles_of(store_dir, "slow")) == 15, "the other subscriber gets all bundles"

    inspected = call("inspect", store_dir / "quiver.drops.fast")
    assert (inspected.exit_code, "skipped" in inspected.output) == (0, True)
    assert call("verify", store_dir).exit_code == 0


def test_latest_skips_all_sealed_bundles(store_dir, segments, call):
    """New bundles are delivered."""
    done = rewound(call, store_dir, "slow", "latest")
    assert (done["bundles_skipped"], done["bundles_again"], done["segment"]) == (15, 0, max(segments) + 1)
    assert bundles_of(store_dir, "slow") == []
    again = rewound(call, store_dir, "slow", "latest")
    assert again["bundles_skipped"] == 0
    with quiver.open(store_dir) as store:
        subscriber = store.register("slow")
        store.ingest(quiver.Bundle({30: pa.record_batch({"n": [1]})}))
        store.seal()
        assert subscriber.next_bundle(timeout=0) is not None


def test_moving_back_delivers_skipped_bundles(store_dir, segments, call):
    """As long as they exist; the record stays."""
    rewound(call, store_dir, "fast", "latest")
    done = rewound(call, store_dir, "fast", "earliest")
    assert (done["bundles_again"], done["bundles_skipped"], done["segment"], done["index"]) == (15, 0, min(segments), 0)
    assert len(bundles_of(store_dir, "fast")) == 15
    assert load_skipped(REAL_FILES, str(store_dir), "fast")


def test_the_printed_position_is_the_next_one(store_dir, segments, call):
    """Also within a segment, and without a change."""
    for to in [*sorted(segments), "earliest", "latest", "1h", "2020-01-01T00:00:00Z", max(segments)]:
        for name in ("fast", "slow"):
            done = rewound(call, store_dir, name, to)
            got = bundles_of(store_dir, name)
            expected = got[0][0] if got else BundleRef(max(segments) + 1, 0)
            assert BundleRef(done["segment"], done["index"]) == expected, f"{name} to {to}"


def test_bundles_in_the_retry_set_are_skipped_too(store_dir, segments, call):
    """Otherwise the exporter would retry them."""
    last = max(segments)
    with RetrySet.open(REAL_FILES, str(store_dir), "slow") as retries:
        retries.failed(BundleRef(0, 0), delay_s=1.0, reason="503")
        retries.failed(BundleRef(last, 0), delay_s=1.0, reason="503")
    rewound(call, store_dir, "slow", last)
    assert [entry.ref for entry in load_retry_set(REAL_FILES, str(store_dir), "slow")] == [BundleRef(last, 0)]


def test_an_impossible_segment_is_refused(store_dir, segments, call):
    """A segment above the next number cannot exist."""
    assert "none above it" in rewound(call, store_dir, "fast", max(segments) + 2, code=2)
    assert not (store_dir / "quiver.drops.fast").exists()


def test_the_record_is_removed_with_the_subscriber(store_dir, segments, call):
    """Before that, a snapshot contains it; if it is damaged, it is repaired."""
    rewound(call, store_dir, "fast", "latest")
    assert call("snapshot", store_dir, store_dir.with_name("copy")).exit_code == 0
    assert (store_dir.with_name("copy") / "quiver.drops.fast").exists()
    (store_dir / "quiver.drops.fast").write_bytes(b"x" * 50)
    assert call("verify", store_dir).exit_code == 1
    assert call("repair", store_dir).exit_code == 0
    assert call("verify", store_dir).exit_code == 0
    rewound(call, store_dir, "fast", "earliest")
    rewound(call, store_dir, "fast", "latest")
    assert call("subscribers", store_dir, "drop", "fast").exit_code == 0
    assert not (store_dir / "quiver.drops.fast").exists()


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_skip_is_kept_in_both_profiles(tmp_path, make_bundle, call, profile):
    """A skip is still valid when the store opens the directory again."""
    settings = quiver.Settings(format_profile=profile)
    with quiver.open(tmp_path / "s", settings, background=False) as store:
        store.register("a", start="earliest")
        for number in range(4):
            store.ingest(make_bundle(20 * number))
            store.seal()
    assert rewound(call, tmp_path / "s", "a", 2)["bundles_skipped"] == 2
    for _ in range(2):
        assert [number for _, number in bundles_of(tmp_path / "s", "a", format_profile=profile)] == [2, 3]


def test_cores_skip_together(made_cores, tmp_path, call):
    """`latest` is the end of each of them."""
    shutil.copytree(made_cores, tmp_path / "s")
    done = json.loads(call("subscribers", tmp_path / "s", "rewind", "slow", "--to", "latest", "--json").output)
    assert sum(one["bundles_skipped"] for one in done) == 12
    assert call("subscribers", tmp_path / "s", "rewind", "slow", "--to", "1").exit_code == 2
