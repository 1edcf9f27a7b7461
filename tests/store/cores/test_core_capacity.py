"""Claims on a shared size cap: together the cores never exceed it, and idle, dead or stopped cores block no space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from core_rig import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.cores.capacity import STALE_S, SharedCapacity, directory_bytes
from quiver.store.cores.instances import find_cores
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
    """A simulated store with a number of bytes in one file."""

    number: int
    capacity: SharedCapacity
    fs: CrashFileSystem
    evictable: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def put(self, nbytes: int) -> bool:
        """Do as ingest does: reserve space, and use it if it is granted."""
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


def test_a_busy_core_uses_the_space_of_idle_cores() -> None:
    """All of the cap except one segment for each other core, which can use its segment at once."""
    cluster = Cluster(4)
    hot, *idle = cluster.cores
    fill(hot)
    assert hot.size == CAP - 3 * STEP
    for core in idle:
        fill(core)
        assert core.size == STEP
    assert cluster.used == CAP
    assert not any(core.put(1) for core in cluster.cores)


def test_released_space_is_available_to_other_cores() -> None:
    """With the next heartbeat of the core that released it."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    fill(hot)
    assert other.put(STEP)
    assert not other.put(10)
    hot.use(0)
    cluster.beat(hot)
    fill(other)
    assert other.size == CAP - STEP


def test_without_a_cap_every_reservation_succeeds() -> None:
    """Claims are still written, so that other processes can read the usage."""
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
    """In any order of calls, all cores together stay within the cap, and a core below its claim has space."""
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
def test_two_cores_that_claim_the_last_space_at_once_do_not_both_get_it(step: int) -> None:
    """At whichever step of the first claim the second one is made."""
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


def test_a_claim_counts_only_while_it_is_renewed() -> None:
    """A stopped core counts with its files instead of its claim. When it continues, its claim counts again."""
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
    # It had less than a segment and may grow to one, so all cores may exceed the cap by the difference.
    assert hot.capacity.bytes_of(1) == STEP


def test_a_dead_process_counts_for_its_files() -> None:
    """A claim that is not renewed is ignored, whether it is too large or too small."""
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
    """The files count until the claim is readable again."""
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


def test_an_eviction_counts_at_once() -> None:
    """Before the owner detects it, and also if the owner publishes its previous figure again."""
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
    # The claim counts again once there is space for it.
    hot.use(0)
    cluster.beat(hot)
    cluster.beat(owner, hot)
    assert hot.capacity.bytes_of(1) == 300 + STEP


def test_freed_space_must_be_claimed_again() -> None:
    """A core that deletes segments which another core had already evicted frees nothing: that space is in use."""
    cluster = Cluster(2)
    hot, owner = cluster.cores
    while owner.size < 600:
        owner.put(10)
    cluster.beat(owner, hot)
    # The other core evicts nearly everything and uses the space before the owner detects it.
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


def test_a_bundle_larger_than_the_claim_is_accepted_after_one_more_claim() -> None:
    """It is refused until the core has claimed enough, which takes one attempt."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    assert not hot.put(3 * STEP)
    assert hot.capacity.make_room(2 * STEP) == 2 * STEP
    assert hot.put(3 * STEP)
    # The same for a partly used claim: the missing bytes count from its end.
    assert hot.capacity.make_room(STEP) >= STEP
    assert hot.put(STEP)
    assert hot.capacity.claim_bytes + other.capacity.claim_bytes <= CAP


def test_a_stopped_core_renews_its_claim_before_it_continues() -> None:
    """While it was stopped, others may have used its unused claim."""
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
def test_wall_clock_steps_do_not_affect_which_claims_count(step_s: int) -> None:
    """A core that keeps writing its claim counts with it; a stopped core does not."""
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


def test_a_claim_far_above_the_cap_is_ignored() -> None:
    """An invalid claim with a valid checksum cannot block the other cores."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    for claim in (2 * CAP + 1, 2**64 - 1):
        for _ in range(3):
            cluster.clock.advance(0.1)
            cluster.fs.open_write(f"{ROOT}/core_1/{CORE_CLAIM}").pwrite(encode_claim(claim), 0)
            cluster.beat(hot)
        assert hot.capacity.bytes_of(1) == 40 + len(encode_claim(0))


def test_eviction_that_freed_nothing_pauses_before_the_next_attempt() -> None:
    """The next attempts wait for a moment."""
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
    """Space that other cores cannot see must not be used, so the store is full."""
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


def test_closing_releases_the_unused_part_of_a_claim() -> None:
    """Other cores can use it at once. Closing twice is harmless."""
    cluster = Cluster(2)
    hot, other = cluster.cores
    other.put(40)
    other.capacity.close()
    other.capacity.close()
    cluster.beat(hot)
    cluster.beat(hot)
    assert hot.capacity.bytes_of(1) == 40


def test_nothing_is_claimed_before_the_lock_is_held() -> None:
    """Until then the core may belong to another process."""
    cluster = Cluster(1)
    before = cluster.fs.read_all(f"{ROOT}/core_0/{CORE_CLAIM}", size_max=99)
    capacity = SharedCapacity(
        cluster.fs, ROOT, 0, cap=OwnCap(CAP), segment_bytes=STEP, clock=cluster.clock, evict=lambda _: {}
    )
    capacity.beat()
    capacity.close()
    assert (capacity.others_bytes(), capacity.make_room(5), capacity.used_bytes(), capacity.bytes_of(3)) == (0, 0, 0, 0)
    assert cluster.fs.read_all(f"{ROOT}/core_0/{CORE_CLAIM}", size_max=99) == before


def test_names_of_core_directories_are_parsed_as_they_are_written() -> None:
    """Other names are ignored."""
    for core in (0, 7, 10, CORE_MAX):
        assert parse_core_directory(core_directory(core)) == core
    for name in ("core_", "core_01", "core_-1", "core_1.tmp", "Core_1", "core_9999", f"core_{CORE_MAX + 1}", "core_٣"):
        assert parse_core_directory(name) is None
    fs = CrashFileSystem()
    fs.make_dirs("/r/core_2")
    fs.make_dirs("/r/core_10")
    fs.make_dirs("/r/other")
    assert find_cores(fs, "/r") == [2, 10]


def test_the_size_of_a_directory_includes_one_level_below() -> None:
    """Files that are removed meanwhile count as zero."""
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
def test_a_truncated_claim_needs_more_bytes(change: Callable[[bytes], bytes]) -> None:
    """It is incomplete, not damaged."""
    assert isinstance(decode_claim(memoryview(change(encode_claim(5)))), NeedMore)


def test_golden_claim() -> None:
    """The bytes of a claim, and every flipped bit is detected."""
    data = encode_claim(123_456_789)
    assert data.hex() == "5155495645520055010018" + "00" + (123_456_789).to_bytes(8, "little").hex() + data[-4:].hex()
    assert decode_claim(memoryview(data)) == Frame(123_456_789, 24)
    assert decode_claim(memoryview(data + b"junk")) == Frame(123_456_789, 24)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert isinstance(decode_claim(memoryview(flipped)), (Damage, NeedMore)), at
