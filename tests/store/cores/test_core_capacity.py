"""Claims on one cap: never more than the cap together, no room lost to who is idle, dead or stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from core_rig import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.cores.capacity import STALE_S, SharedCapacity, directory_bytes, find_cores
from quiver.store.format.cores import (
    CORE_CLAIM,
    CORE_MAX,
    core_directory,
    decode_claim,
    encode_claim,
    parse_core_directory,
)
from quiver.store.limits.capacity import OwnCap
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

CAP = 1_000
STEP = 100


@dataclass
class Core:
    """A pretended store: so many bytes, in one file."""

    number: int
    capacity: SharedCapacity
    fs: CrashFileSystem
    evictable: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def put(self, nbytes: int) -> bool:
        """What ingest does: ask, and use it if there is room."""
        capacity = self.capacity
        if capacity.cap_bytes is not None and self.size + nbytes + capacity.others_bytes() > capacity.cap_bytes:
            return False
        self.use(self.size + nbytes)
        return True

    def use(self, size: int) -> None:
        self.size = size
        self.fs.create_or_truncate(f"{ROOT}/core_{self.number}/segments/0.qseg").truncate(size)


class Cluster:
    def __init__(self, cores: int, cap: int | None = CAP) -> None:
        self.clock = ManualClock()
        self.fs = CrashFileSystem(clock=self.clock)
        self.cap = cap
        self.cores = [self.start(number) for number in range(cores)]
        self.beat(*self.cores)

    def start(self, number: int, size: int = 0) -> Core:
        self.fs.make_dirs(f"{ROOT}/core_{number}/segments")
        evictable: dict[int, int] = {}

        def evict(bytes_wanted: int) -> dict[int, int]:
            freed = {}
            for other, size in evictable.items():
                self.cores[other].use(self.cores[other].size - size)
                freed[other] = size
            evictable.clear()
            return freed

        capacity = SharedCapacity(
            self.fs, ROOT, number, cap=OwnCap(self.cap), segment_bytes=STEP, clock=self.clock, evict=evict
        )
        core = Core(number, capacity, self.fs, evictable)
        core.use(size)
        capacity.attach(lambda: core.size)
        return core

    def beat(self, *cores: Core) -> None:
        self.clock.advance(0.1)
        for core in cores:
            core.capacity.beat()

    @property
    def used(self) -> int:
        return sum(core.size for core in self.cores)


def fill(core: Core, step: int = 10) -> None:
    while core.put(step):
        pass


def test_a_hot_core_uses_what_idle_ones_do_not() -> None:
    """All of the cap but a segment for each of the others, which can use theirs at once."""
    cluster = Cluster(4)
    hot, *idle = cluster.cores
    fill(hot)
    assert hot.size == CAP - 3 * STEP
    for core in idle:
        fill(core)
        assert core.size == STEP
    assert cluster.used == CAP
    assert not any(core.put(1) for core in cluster.cores)


def test_what_one_gives_up_another_can_use() -> None:
    """Room comes back to the others with the next beat."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    fill(hot)
    assert other.put(STEP)
    assert not other.put(10)
    hot.use(0)
    cluster.beat(hot)
    fill(other)
    assert other.size == CAP - STEP


def test_without_a_cap_nothing_is_refused() -> None:
    """Claims are still written, so that others can see what there is."""
    cluster = Cluster(2, cap=None)
    core = cluster.cores[0]
    assert core.put(10 * CAP)
    assert core.capacity.others_bytes() == core.capacity.make_room(10) == 0
    cluster.beat(core)
    assert core.capacity.claim_bytes == core.size


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["put", "free", "beat"]), st.integers(1, 60)), max_size=60),
)
def test_claims_never_exceed_the_cap(cores: int, steps: list[tuple[int, str, int]]) -> None:
    """Whatever the cores do in turns: all together stay within the cap, and a core below its claim has room."""
    cluster = Cluster(cores)
    for number, what, nbytes in steps:
        core = cluster.cores[number % cores]
        if what == "put":
            core.put(nbytes)
        elif what == "free":
            core.use(max(0, core.size - nbytes))
        else:
            cluster.beat(core)
        assert cluster.used <= CAP
        assert sum(one.capacity.claim_bytes for one in cluster.cores) <= CAP
        assert all(one.size <= one.capacity.claim_bytes for one in cluster.cores)


@pytest.mark.parametrize("step", range(1, 8))
def test_two_that_reach_for_the_last_room_at_once(step: int) -> None:
    """Wherever in one core's claim the other makes its own, they do not both get it."""
    cluster = Cluster(2)
    one, two = cluster.cores
    while cluster.used < CAP - 3 * STEP:
        one.put(10)
        two.put(10)
    count = 0

    def on_step(op: str, path: str) -> None:
        nonlocal count
        if path.endswith(CORE_CLAIM):
            count += 1
            if count == step:
                fill(two)

    cluster.fs.on_step = on_step
    fill(one)
    cluster.fs.on_step = None
    assert cluster.used <= CAP
    fill(two)
    assert CAP - STEP <= cluster.used <= CAP


def test_a_claim_is_believed_while_it_is_written() -> None:
    """A core that stopped counts for what it has, not for what it claims; when it goes on, for its claim."""
    cluster = Cluster(3)
    hot, stopped, other = cluster.cores
    stopped.put(30)
    cluster.beat(*cluster.cores)
    cluster.beat(*cluster.cores)
    assert hot.capacity.bytes_of(1) == 30 + STEP
    for _ in range(int(STALE_S / 0.1) + 2):
        cluster.beat(hot, other)
    assert hot.capacity.bytes_of(1) == 30 + len(encode_claim(0))
    fill(hot)
    assert hot.size > CAP - 2 * STEP - 30
    cluster.beat(stopped)
    cluster.beat(hot)
    # It had less than a segment, and may use what is missing to one: by so much all may be over the cap together.
    assert hot.capacity.bytes_of(1) == STEP


def test_a_dead_process_counts_for_its_files() -> None:
    """What a claim says that nobody was seen to write is not believed, be it too much or too little."""
    cluster = Cluster(2)
    cluster.cores[1].use(250)
    for claim in (encode_claim(900), encode_claim(0), b"", b"half a cl", bytes(24)):
        path = f"{ROOT}/core_1/{CORE_CLAIM}"
        cluster.fs.create_or_truncate(path).pwrite(claim, 0)
        cluster.clock.advance(1)
        fresh = cluster.start(0)
        fresh.capacity.beat()
        assert fresh.capacity.bytes_of(1) == 250 + len(claim)
        cluster.fs.remove(path)
        fresh = cluster.start(0)
        assert fresh.capacity.bytes_of(1) == 250


def test_a_claim_that_is_damaged_while_it_is_written() -> None:
    """The files count until it can be read again."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(50)
    for _ in range(3):
        cluster.beat(*cluster.cores)
    cluster.clock.advance(0.1)
    cluster.fs.open_write(f"{ROOT}/core_1/{CORE_CLAIM}").pwrite(b"\xff", 12)
    cluster.beat(hot)
    assert hot.capacity.bytes_of(1) == 50 + len(encode_claim(0))
    cluster.beat(other, hot)
    assert hot.capacity.bytes_of(1) == 50 + STEP


def test_evicting_counts_at_once() -> None:
    """Before the owner takes note, and also when it publishes once more what it had."""
    cluster = Cluster(2)
    hot, owner = cluster.cores
    while owner.size < 600:
        owner.put(10)
    cluster.beat(owner)
    fill(hot)
    before = hot.size
    hot.evictable[1] = 300
    stale = owner.size
    gained = hot.capacity.make_room(10)
    assert gained >= 10
    assert hot.put(10)
    owner.size = stale
    cluster.beat(owner)
    fill(hot)
    assert before < hot.size <= CAP - 300
    owner.size = 300
    for _ in range(3):
        cluster.beat(owner, hot)
    assert cluster.used <= CAP
    # Believed again, as soon as there is room for its claim.
    hot.use(0)
    cluster.beat(hot)
    cluster.beat(owner, hot)
    assert hot.capacity.bytes_of(1) == 300 + STEP


def test_what_is_freed_is_asked_for_anew() -> None:
    """A core that deletes what another deleted before it has freed nothing: the room is in use already."""
    cluster = Cluster(2)
    hot, owner = cluster.cores
    while owner.size < 600:
        owner.put(10)
    cluster.beat(owner, hot)
    # The other evicts nearly all of it, and uses what that gave, before the owner takes note.
    hot.evictable[1] = 500
    counted = owner.size
    assert hot.capacity.make_room(800) > 400
    real, owner.size = owner.size, counted
    fill(hot)
    assert hot.size > 700
    for freed in (100, 200, 200):
        owner.size -= freed
        for _ in range(20):
            real += 10 if owner.put(10) else 0
    assert hot.size + real <= CAP + STEP


def test_a_bundle_that_is_larger_than_what_is_claimed_ahead() -> None:
    """It is refused until the core has claimed for it, which is done once, and then it fits."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    assert not hot.put(3 * STEP)
    assert hot.capacity.make_room(2 * STEP) == 2 * STEP
    assert hot.put(3 * STEP)
    # Of a claim that is partly used, too: what is missing is missing beyond the claim.
    assert hot.capacity.make_room(STEP) >= STEP
    assert hot.put(STEP)
    assert hot.capacity.claim_bytes + other.capacity.claim_bytes <= CAP


def test_a_core_that_was_stopped_claims_anew_before_it_goes_on() -> None:
    """While it was stopped the others may have used what it had claimed and not used: it asks again first."""
    cluster = Cluster(2)
    hot, stopped = cluster.cores
    while stopped.size < 450:
        stopped.put(10)
    assert stopped.capacity.claim_bytes > 500
    for _ in range(int(STALE_S / 0.1) + 2):
        cluster.beat(hot)
    fill(hot)
    assert cluster.used > CAP - STEP
    assert not stopped.put(80)
    assert cluster.used <= CAP


@pytest.mark.parametrize("step_s", [-86_400, -1, 86_400])
def test_a_clock_that_steps(step_s: int) -> None:
    """Whatever the wall clock does: who goes on writing is believed, who stopped is not."""
    cluster = Cluster(3)
    hot, live, stopped = cluster.cores
    live.put(30)
    stopped.put(30)
    cluster.beat(*cluster.cores)
    cluster.clock.set_wall_ns(cluster.clock.now_ns() + step_s * 10**9)
    for _ in range(int(STALE_S / 0.1) + 2):
        cluster.beat(hot, live)
    assert hot.capacity.bytes_of(1) == 30 + STEP
    assert hot.capacity.bytes_of(2) == 30 + len(encode_claim(0))


def test_a_claim_far_above_the_cap_is_not_believed() -> None:
    """Garbage with a good checksum cannot shut the others out."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    for claim in (2 * CAP + 1, 2**64 - 1):
        for _ in range(3):
            cluster.clock.advance(0.1)
            cluster.fs.open_write(f"{ROOT}/core_1/{CORE_CLAIM}").pwrite(encode_claim(claim), 0)
            cluster.beat(hot)
        assert hot.capacity.bytes_of(1) == 40 + len(encode_claim(0))


def test_eviction_is_not_tried_again_and_again() -> None:
    """When nothing could go, the next tries wait a moment."""
    cluster = Cluster(2)
    hot, owner = cluster.cores
    fill(hot)
    assert hot.capacity.make_room(10) == 0
    owner.use(50)
    hot.evictable[1] = 50
    assert hot.capacity.make_room(10) == 0
    cluster.clock.advance(0.1)
    hot.capacity.make_room(10)
    assert owner.size == 0


def test_a_claim_that_cannot_be_written_is_not_used() -> None:
    """What the others cannot see must not be taken; the store is told that it is full."""
    cluster = Cluster(2)
    broken = FaultFileSystem(cluster.fs)
    capacity = SharedCapacity(
        broken, ROOT, 0, cap=OwnCap(CAP), segment_bytes=STEP, clock=cluster.clock, evict=lambda _: {}
    )
    size = 0
    capacity.attach(lambda: size)
    broken.fail_on("pwrite")
    claim = capacity.claim_bytes
    size = claim
    capacity.others_bytes()
    assert capacity.claim_bytes == claim
    cluster.clock.advance(1)
    capacity.others_bytes()
    assert capacity.claim_bytes > claim


def test_closing_leaves_what_is_used() -> None:
    """The rest is anybody's at once. Twice is fine."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    other.capacity.close()
    other.capacity.close()
    cluster.beat(hot)
    cluster.beat(hot)
    assert hot.capacity.bytes_of(1) == 40


def test_before_it_is_attached_nothing_is_claimed() -> None:
    """The core may be somebody else's until its lock is held."""
    cluster = Cluster(1)
    before = cluster.fs.read_all(f"{ROOT}/core_0/{CORE_CLAIM}", size_max=99)
    capacity = SharedCapacity(
        cluster.fs, ROOT, 0, cap=OwnCap(CAP), segment_bytes=STEP, clock=cluster.clock, evict=lambda _: {}
    )
    capacity.beat()
    capacity.close()
    assert (capacity.others_bytes(), capacity.make_room(5), capacity.used_bytes(), capacity.bytes_of(3)) == (0, 0, 0, 0)
    assert cluster.fs.read_all(f"{ROOT}/core_0/{CORE_CLAIM}", size_max=99) == before


def test_what_is_a_core() -> None:
    """Names are made and parsed alike; others are left alone."""
    for core in (0, 7, 10, CORE_MAX):
        assert parse_core_directory(core_directory(core)) == core
    for name in ("core_", "core_01", "core_-1", "core_1.tmp", "Core_1", "core_9999", f"core_{CORE_MAX + 1}", "core_٣"):
        assert parse_core_directory(name) is None
    fs = CrashFileSystem()
    fs.make_dirs("/r/core_2")
    fs.make_dirs("/r/core_10")
    fs.make_dirs("/r/other")
    assert find_cores(fs, "/r") == [2, 10]


def test_adding_up_a_directory() -> None:
    """Its files and those one level below; what vanishes meanwhile counts nothing."""
    fs = CrashFileSystem()
    fs.make_dirs("/d/sub/deeper")
    for path, size in (("/d/f", 5), ("/d/sub/g", 7), ("/d/sub/deeper/h", 100)):
        fs.create(path).truncate(size)
    assert directory_bytes(fs, "/d") == 12
    stat = fs.stat

    def vanishing(path: str) -> object:
        if path.endswith("/g"):
            raise FileNotFoundError(path)
        return stat(path)

    fs.stat = vanishing  # type: ignore[method-assign, assignment]
    assert directory_bytes(fs, "/d") == 5


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:3], lambda _: b""])
def test_a_claim_cut_short(change: Callable[[bytes], bytes]) -> None:
    """More is needed."""
    assert isinstance(decode_claim(memoryview(change(encode_claim(5)))), NeedMore)


def test_golden_claim() -> None:
    """The bytes of a claim, each of which counts."""
    data = encode_claim(123_456_789)
    assert data.hex() == "5155495645520055010018" + "00" + (123_456_789).to_bytes(8, "little").hex() + data[-4:].hex()
    assert decode_claim(memoryview(data)) == Frame(123_456_789, 24)
    assert decode_claim(memoryview(data + b"junk")) == Frame(123_456_789, 24)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert isinstance(decode_claim(memoryview(flipped)), (Damage, NeedMore)), at
