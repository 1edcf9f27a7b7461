"""A damaged progress file: four policies, and the guarantee of each."""

import pytest
from registry_rig import ROOT, Bench, crash_states, names

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, UnsupportedFormatError
from quiver.primitives.checksum import crc32c
from quiver.store.format.progress import Progress, SegmentProgress, encode_progress
from quiver.store.subscribers.progress_store import SubscriberFile, load_progress
from quiver.store.subscribers.state import SegmentRef
from quiver.testing.crashfs import CrashFileSystem

FILE = "quiver.sub.a"
BACKUP = "quiver.sub.a.bak"


def _segments():
    return [SegmentRef(seq, 2) for seq in range(3)]


def _worked(policy, **options):
    """Two generations: the first two bundles are written, then one more."""
    bench = Bench(segments=_segments(), progress_damage=policy, **options)
    subscriber = bench.registry.register("a", "earliest")
    for count in (2, 1):
        for _ in range(count):
            subscriber.next_bundle(timeout=0).ack()
        bench.registry.save()
    bench.registry.close()
    return bench


def _again(bench, policy, **options):
    return Bench(bench.disk, segments=_segments(), progress_damage=policy, **options)


def _pending(bench):
    return names(bench.refs(bench.registry.register("a")))


ALL = ["0:0", "0:1", "1:0", "1:1", "2:0", "2:1"]


def test_the_policy_fail_refuses_to_open_and_changes_nothing():
    bench = _worked("fail")
    bench.flip(FILE)
    with pytest.raises(CorruptionError) as caught:
        _again(bench, "fail")
    assert caught.value.path == f"{ROOT}/{FILE}"
    assert not bench.disk.exists(f"{ROOT}/quarantine")
    bench.flip(FILE)
    assert _pending(_again(bench, "fail")) == ALL[3:]


def test_the_policy_fail_refuses_a_subscriber_damaged_after_open():
    bench = _worked("fail")
    again = _again(bench, "fail")
    subscriber = again.registry.register("a")
    again.flip(FILE)
    with pytest.raises(CorruptionError):
        subscriber.next_bundle(timeout=0)
    again.flip(FILE)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(1, 1)


def test_the_policy_fail_waits_for_the_owner_in_another_process():
    """The owner writes the file again; until then nothing is deleted."""
    bench = _worked("fail")
    elsewhere = SubscriberFile(bench.disk, ROOT, "a")
    elsewhere.acquire()
    bench.flip(FILE)
    again = _again(bench, "fail")
    assert again.registry.complete_segments() == []
    elsewhere.put(Progress(3, {}))
    again.registry.refresh()
    assert again.registry.complete_segments() == [0, 1, 2]


def test_the_policy_restart_earliest_delivers_everything_again():
    bench = _worked("restart_earliest")
    assert not bench.disk.exists(f"{ROOT}/{BACKUP}")
    bench.flip(FILE)
    assert _pending(_again(bench, "restart_earliest")) == ALL


def test_the_policy_restart_latest_counts_what_it_skips():
    """The number of resolved bundles is unknown, so all are counted."""
    bench = _worked("restart_latest")
    bench.flip(FILE)
    again = _again(bench, "restart_latest", audit_bytes_max=10_000)
    counted = "quiver.subscriber.dropped_bundles_total"
    assert again.observer.counts[counted, (("reason", "progress_damaged"), ("subscriber", "a"))] == 6
    subscriber = again.registry.register("a")
    again.seal(3, 1)
    assert names(again.refs(subscriber)) == ["3:0"]
    again.registry.save()
    trail = again.disk.read_all(f"{ROOT}/quiver.audit.jsonl", size_max=10_000).splitlines()
    assert len(trail) == 3
    assert all(b'"why":"progress_damaged"' in line for line in trail)


def test_the_policy_backup_continues_from_the_previous_generation():
    """Only bundles of the last generation are delivered again."""
    bench = _worked("backup")
    bench.flip(FILE)
    again = _again(bench, "backup")
    assert _pending(again) == ALL[2:]
    reported = next(
        event for event in again.observer.reported if event["name"] == "quiver.subscriber.progress.recreated"
    )
    assert reported["start"] == "backup"
    assert again.disk.exists(reported["copy"])


@pytest.mark.parametrize("how", ["missing", "damaged", "cut"])
def test_without_a_valid_backup_everything_is_delivered_again(how):
    bench = _worked("backup")
    bench.flip(FILE)
    if how == "missing":
        bench.disk.remove(f"{ROOT}/{BACKUP}")
    elif how == "damaged":
        bench.flip(BACKUP)
    else:
        bench.disk.open_write(f"{ROOT}/{BACKUP}").truncate(20)
    assert _pending(_again(bench, "backup")) == ALL


def test_a_backup_never_undoes_a_rewind():
    """Also a backup from a time when backups were enabled."""
    bench = _worked("backup")
    for policy in ("backup", "restart_earliest"):
        again = Bench(bench.disk.clone_after_kill(), segments=_segments(), progress_damage=policy)
        again.registry.rewind("a", "earliest")
        again.registry.close()
        assert again.disk.exists(f"{ROOT}/{BACKUP}")
        again.flip(FILE)
        assert _pending(_again(again, "backup")) == ALL


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_at_every_step_file_and_backup_are_valid_and_skip_nothing(profile):
    """
    Ack, write, rewind, ack, write with a power loss at any step, and then the file is damaged: every bundle that was
    pending at the power loss is delivered.
    """
    bench = Bench(segments=_segments(), progress_damage="backup", profile=profile)
    subscriber = bench.registry.register("a", "earliest")
    states = []
    acked = set()

    def step(*refs):
        for ref in refs:
            subscriber.claim(BundleRef(*ref)).ack()
            acked.add("{}:{}".format(*ref))
        states.extend((state, set(acked)) for state in crash_states(bench.disk, bench.registry.save))

    step((0, 0), (0, 1), (1, 0))
    step((1, 1))
    before = set(acked)
    rewinding = crash_states(bench.disk, lambda: subscriber.rewind(BundleRef(0, 1)))
    acked -= {"0:1", "1:0", "1:1"}
    states.extend((state, before) for state in rewinding[:-6])
    states.extend((state, set(acked)) for state in rewinding[-6:])
    step((2, 1))
    step((0, 1), (2, 0))
    for state, resolved in states:
        disk = state.clone_after_kill()
        damaged = bytearray(disk.read_all(f"{ROOT}/{FILE}", size_max=1000))
        damaged[15] ^= 0xFF
        disk.open_write(f"{ROOT}/{FILE}").pwrite(bytes(damaged), 0)
        again = Bench(disk, segments=_segments(), progress_damage="backup", profile=profile)
        assert set(_pending(again)) >= set(ALL) - resolved


def test_a_crash_while_the_backup_is_put_in_place_changes_nothing():
    bench = _worked("backup")
    bench.flip(FILE)
    states = crash_states(bench.disk, lambda: _again(bench, "backup"))
    for state in states:
        assert _pending(Bench(state, segments=_segments(), progress_damage="backup")) == ALL[2:]
        assert len([name for name in state.list_dir(f"{ROOT}/quarantine") if name.endswith(".damaged")]) == 1


def test_the_backup_is_the_previous_file():
    bench = _worked("backup")
    kept = bench.disk.read_all(f"{ROOT}/{BACKUP}", size_max=1000)
    assert kept == encode_progress(Progress(1, {}), profile="spec")
    assert load_progress(bench.disk, ROOT, "a") == Progress(1, {1: SegmentProgress(2, 0b01)})


def test_an_owner_in_another_process_keeps_a_backup_if_configured():
    disk = CrashFileSystem()
    disk.make_dirs(ROOT)
    bench = Bench(disk)
    bench.registry.register("a", "earliest")
    bench.registry.close()
    for keep, expected in ((False, False), (True, True)):
        with SubscriberFile(disk, ROOT, "a", keep_backup=keep) as file:
            file.know(_segments())
            file.ack_through(1 if keep else 0, 1)
            assert file.save()
        assert disk.exists(f"{ROOT}/{BACKUP}") == expected


@pytest.mark.parametrize("policy", ["fail", "restart_earliest", "restart_latest", "backup"])
def test_a_file_of_a_newer_version_is_refused_and_kept(policy):
    """Its checksum is valid, so it contains progress: no policy discards it."""
    bench = _worked(policy)
    file = bench.disk.open_write(f"{ROOT}/{FILE}")
    body = bytearray(file.pread(1 << 16, 0)[:-4])
    body[8] += 1
    newer = bytes(body) + crc32c(body).to_bytes(4, "little")
    file.pwrite(newer, 0)
    file.sync()
    file.close()
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        names(_again(bench, policy).registry.register("a").next_bundles(9, timeout=0))
    assert bench.disk.read_all(f"{ROOT}/{FILE}", size_max=1 << 16) == newer
