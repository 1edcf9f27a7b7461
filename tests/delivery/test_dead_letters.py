"""Dead letters: durable with their reason, without duplicates, readable while the exporter runs, and droppable."""

import pytest
from numbered import bundle_of, number_of

from quiver.bundle import Bundle, BundleRef
from quiver.delivery.dead_letters import (
    DEAD_LETTER_SETTINGS,
    DeadLetters,
    count_dead_letters,
    dead_letters_root,
    exporters_with_dead_letters,
    open_dead_letters,
    read_dead_letters,
    replay_dead_letters,
)
from quiver.delivery.policy import Delivered, Permanent, Transient
from quiver.errors import BundleUnavailableError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.names import parse_segment_name
from quiver.store.opening import open_store

ROOT = "/store"


@pytest.fixture
def letters(disk, clock):
    opened = DeadLetters(ROOT, "out", fs=disk, clock=clock, background=False)
    yield opened
    opened.close()


def drop(disk, refs=None, root=ROOT):
    with open_dead_letters(disk, root, "out") as box:
        return None if box is None else box.drop(refs)


def refs_of(disk, root=ROOT):
    return [tuple(letter.ref) for letter in read_dead_letters(disk, root, "out")]


def fill(letters, *indexes):
    for index in indexes:
        assert letters.add(BundleRef(3, index), bundle_of(index), reason=f"HTTP 40{index}")


def test_a_dead_letter_has_the_bundle_and_its_history(disk, clock, letters):
    """The original bundle, the reason, the attempts and their times. A reader takes no lock."""
    original = Bundle(bundle_of(5).batches, ingested_at_ns=12)
    letters.add(BundleRef(3, 4), original, reason="HTTP 400: no", attempts=6, first_failed_at_ns=99)
    (letter,) = read_dead_letters(disk.clone_after_crash(0), ROOT, "out")
    assert (letter.ref, letter.reason, letter.attempts) == (BundleRef(3, 4), "HTTP 400: no", 6)
    assert (letter.first_failed_at_ns, letter.given_up_at_ns, letter.ingested_at_ns) == (99, clock.now_ns(), 12)
    assert letter.bundle == original
    assert exporters_with_dead_letters(disk, ROOT) == ["out"]


def test_no_directory_is_created_before_the_first_dead_letter(disk, letters):
    letters.close()
    assert not disk.exists(letters.path)
    assert (exporters_with_dead_letters(disk, ROOT), read_dead_letters(disk, ROOT, "out")) == ([], [])
    assert drop(disk) is None
    with pytest.raises(UsageError):
        dead_letters_root(ROOT, "../out")


def test_a_bundle_added_twice_is_one_dead_letter(disk, clock, letters):
    """In one process and across restarts: after a crash before the ack, the original may be added again."""
    fill(letters, 1, 2)
    assert not letters.add(BundleRef(3, 1), bundle_of(1), reason="again")
    again = DeadLetters(ROOT, "out", fs=disk.clone_after_kill(), clock=clock, background=False)
    assert not again.add(BundleRef(3, 2), bundle_of(2), reason="again")
    assert again.add(BundleRef(4, 2), bundle_of(2), reason="another")
    again.close()
    assert refs_of(disk) == [(3, 1), (3, 2)]


def test_an_unreadable_bundle_is_a_dead_letter_without_content(disk, letters):
    letters.add(BundleRef(0, 0), None, reason="CorruptionError")
    (letter,) = read_dead_letters(disk, ROOT, "out")
    assert (letter.bundle.slots, letter.ingested_at_ns) == ((), None)


def test_the_reason_uses_a_free_slot(disk, letters):
    """A bundle that uses the last slots keeps them."""
    batch = bundle_of(1)[60]
    letters.add(BundleRef(0, 0), Bundle(dict.fromkeys((60, 62, 63), batch)), reason="no")
    (letter,) = read_dead_letters(disk, ROOT, "out")
    assert letter.bundle.slots == (60, 62, 63)


def test_dropping_removes_dead_letters_from_disk(disk, letters):
    """One, then the rest; then there is nothing left to drop."""
    fill(letters, 1, 2, 3)
    letters.close()
    assert drop(disk, {BundleRef(3, 2)}) == 1
    assert refs_of(disk.clone_after_crash(0)) == [(3, 1), (3, 3)]
    assert drop(disk) == 2
    assert (drop(disk), refs_of(disk)) == (0, [])
    names = disk.list_dir(f"{letters.path}/segments")
    assert [name for name in names if parse_segment_name(name) is not None] == []


def test_dead_letters_are_counted_without_reading_segments(disk, letters):
    """In the log and in segments, minus the dropped ones: the count equals the length of the list."""
    assert count_dead_letters(disk, ROOT, "out") == 0
    fill(letters, 0, 1, 2)
    assert count_dead_letters(disk, ROOT, "out") == 3
    letters.close()
    assert count_dead_letters(disk, ROOT, "out") == 3
    drop(disk, {BundleRef(3, 1)})
    fill(letters, 4, 5)
    assert count_dead_letters(disk, ROOT, "out") == len(refs_of(disk)) == 4
    assert count_dead_letters(disk.clone_after_crash(0), ROOT, "out") == 4
    letters.close()
    drop(disk)
    assert count_dead_letters(disk, ROOT, "out") == len(refs_of(disk)) == 0


def test_dead_letters_are_dropped_while_the_exporter_runs(tmp_path):
    """Sealed ones; others a moment later. The exporter frees the disk and continues."""
    dead_letters = DeadLetters(str(tmp_path), "out", background=False)
    fill(dead_letters, 1)
    with pytest.raises(BundleUnavailableError, match="not sealed yet: 1 dead letter in"):
        drop(REAL_FILES, root=str(tmp_path))
    dead_letters._store.seal()
    fill(dead_letters, 2)
    assert drop(REAL_FILES, {BundleRef(3, 1)}, str(tmp_path)) == 1
    assert refs_of(REAL_FILES, str(tmp_path)) == [(3, 2)]
    dead_letters._store.maintain()
    dead_letters._store.seal()
    assert len([name for name in REAL_FILES.list_dir(f"{dead_letters.path}/segments") if name.endswith(".qseg")]) == 1
    assert drop(REAL_FILES, root=str(tmp_path)) == 1
    dead_letters.close()
    assert refs_of(REAL_FILES, str(tmp_path)) == []


def test_replay_drops_delivered_dead_letters(disk, letters):
    """One by one; those refused again are kept."""
    fill(letters, 1, 2, 3)
    letters.close()
    answers = {1: Delivered(), 2: Permanent("HTTP 400"), 3: Transient("UNAVAILABLE")}
    seen = []

    def deliver(letter):
        seen.append((number_of(letter.bundle), len(refs_of(disk))))
        return answers[seen[-1][0]]

    with open_dead_letters(disk, ROOT, "out") as box:
        done = list(replay_dead_letters(box, box.letters(), deliver))
    assert [(tuple(one.letter.ref), one.outcome) for one in done] == [((3, n), answers[n]) for n in (1, 2, 3)]
    assert seen == [(1, 3), (2, 2), (3, 2)]
    assert refs_of(disk) == [(3, 2), (3, 3)]


def test_dead_letters_are_readable_as_a_store(disk, letters):
    fill(letters, 1, 2)
    letters.close()
    with open_store(letters.path, DEAD_LETTER_SETTINGS, fs=disk, background=False) as store:
        handle = store.register("look", start="earliest").next_bundle(timeout=0)
        assert handle.bundle.slots == (60, 63)
        assert handle.bundle[63].to_pylist()[0]["reason"] == "HTTP 401"


@pytest.mark.parametrize("kill", [True, False])
def test_a_crash_at_any_step_keeps_the_guarantees(disk, clock, kill):
    """Each bundle whose `add` returned is there once, no dropped one is, and nothing else."""
    moments = []
    promised, begun, dropped = set(), set(), set()

    def crash(*_step):
        state = disk.clone_after_kill() if kill else disk.clone_after_crash(disk.steps % 4)
        moments.append((state, promised - begun, set(dropped)))

    dead_letters = DeadLetters(ROOT, "out", fs=disk, clock=clock, background=False)
    disk.on_step = crash
    for index in (1, 2):
        dead_letters.add(BundleRef(3, index), bundle_of(index), reason="no")
        promised.add((3, index))
    dead_letters.close()
    begun.add((3, 1))
    drop(disk, {BundleRef(3, 1)})
    dropped.add((3, 1))
    disk.on_step = None
    assert len(moments) > 60
    for state, kept, removed in moments:
        found = refs_of(state)
        assert len(found) == len(set(found))
        assert kept <= set(found) <= {(3, 1), (3, 2)} - removed
