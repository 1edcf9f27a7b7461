"""The same pipeline under other faults: restarts in any order, a destination that starts late, a full disk."""

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import threading
from random import Random

import pytest
from soak_far_side import FarSide, Producer
from soak_pipeline import Pipeline, check, exported, settle

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]

SETTLE_S = 300.0
DISK_BYTES = 96 * 1024 * 1024
FROZEN_S = 120.0
EXT4_BYTES = 512 * 1024 * 1024


class Sending:
    """Run a producer until the end of the block; the confirmed numbers are in `sent`."""

    def __init__(self, pipeline, first):
        self.producer = Producer(pipeline.port, first, 1, 0.01)

    def __enter__(self):
        self.producer.start()
        return self.producer

    def __exit__(self, *_):
        self.producer.stopping.set()
        self.producer.join()


def wait_for(pipeline, producer, count):
    """Wait until so many more are confirmed."""
    before = len(producer.confirmed)
    pipeline.wait_until(lambda: len(producer.confirmed) >= before + count, 120)


def wait_until_tried(pipeline, producer, count):
    """Wait until so many more are confirmed or refused."""
    before = producer.tried
    pipeline.wait_until(lambda: producer.tried >= before + count, 120)


def test_it_starts_before_its_far_side(tmp_path):
    """The other exporters continue meanwhile; the destination has everything after it started."""
    far = FarSide()
    far.down()
    with Pipeline(tmp_path, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            wait_for(pipeline, producer, 500)
        pipeline.wait_until(lambda: len(exported(tmp_path / "lake")) >= 500, 120)
        assert not far.arrived
        far.up()
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(tmp_path, far, producer.confirmed, producer.unknown)


@pytest.mark.parametrize("seed", range(3))
def test_parts_restart_in_any_order(tmp_path, seed):
    """Destination, ingest, Spark and all of them, killed or stopped, each before the previous one is back."""
    random = Random(seed)
    far = FarSide()
    with Pipeline(tmp_path, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            wait_for(pipeline, producer, 100)
            parts = ["far", "ingest", "spark", "all", "far", "ingest", "spark", "stopped"]
            random.shuffle(parts)
            for part in parts:
                if part == "far":
                    far.down() if far.is_up else far.up()
                elif part == "all":
                    pipeline.kill()
                    pipeline.start()
                elif part == "stopped":
                    pipeline.stop()
                    pipeline.start()
                else:
                    pipeline.wait_until(lambda part=part: pipeline.kill_child(part), 60)
                wait_for(pipeline, producer, random.randrange(5, 60))
        if not far.is_up:
            far.up()
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(tmp_path, far, producer.confirmed, producer.unknown)


@pytest.mark.parametrize("part", ["spark", "ingest"])
def test_a_part_that_is_stopped_for_minutes_continues(tmp_path, part):
    """A stopped process exists but does not respond: afterwards nothing is lost, and nothing is exported twice."""
    far = FarSide()
    with Pipeline(tmp_path, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            wait_for(pipeline, producer, 100)
            for _ in range(2):
                with pipeline.frozen(part):
                    pause(FROZEN_S)
                wait_for(pipeline, producer, 100)
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(tmp_path, far, producer.confirmed, producer.unknown)


class Ext4:
    """A file system on *image* that becomes read-only at the first error, as on many servers."""

    def __init__(self, image, place):
        self.image, self.place = image, place
        place.mkdir()
        image.touch()
        os.truncate(image, EXT4_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-e", "remount-ro", str(image)], check=True)

    def mount(self):
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.place)], check=True)

    def unmount(self):
        subprocess.run(["umount", str(self.place)], check=True)
        subprocess.run(["e2fsck", "-p", str(self.image)], capture_output=True, check=False)  # 1: it repaired

    def fail(self):
        """Make the kernel notice an error: from now on each write fails, and reads succeed."""
        found = subprocess.run(["losetup", "-j", str(self.image)], capture_output=True, text=True, check=True)
        device = pathlib.Path(found.stdout.partition(":")[0]).name
        pathlib.Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


@pytest.fixture
def ext4(tmp_path):
    """A mounted one."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not pathlib.Path("/sys/fs/ext4").exists():
        pytest.skip("this machine lets nobody make and mount an ext4 file system")
    made = Ext4(tmp_path / "image", tmp_path / "disk")
    try:
        made.mount()
    except subprocess.CalledProcessError:
        pytest.skip("this machine has no loop devices")
    yield made
    subprocess.run(["umount", "-l", str(made.place)], check=False)


def test_a_disk_that_became_read_only(ext4, tmp_path):
    """After a file system check and a restart, all confirmed records are exported once."""
    far = FarSide()
    with Pipeline(ext4.place, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            wait_for(pipeline, producer, 200)
            ext4.fail()
            wait_until_tried(pipeline, producer, 50)
            pipeline.kill()
            ext4.unmount()
            ext4.mount()
            pipeline.start()
            wait_for(pipeline, producer, 200)
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(ext4.place, far, producer.confirmed, producer.unknown)


def pause(seconds):
    """Let real time pass: the other processes use the system clock."""
    threading.Event().wait(seconds)


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a separate disk that is soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path):
    """Write until the disk is full."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_a_full_disk_in_the_middle(small_disk):
    """
    Buffer, files, dead letters, checkpoints and all logs are on it. No confirmed record is lost, no process gives up
    permanently, and everything continues when there is space again.
    """
    far = FarSide()
    with Pipeline(small_disk, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            for number in range(3):
                wait_for(pipeline, producer, 200)
                fill(small_disk / "full")
                # The log has allocated its blocks, so ingest accepts that much; then it refuses.
                wait_until_tried(pipeline, producer, 200)
                pipeline.kill_child(("spark", "ingest", "neither")[number])
                (small_disk / "full").unlink()
            wait_for(pipeline, producer, 200)
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(small_disk, far, producer.confirmed, producer.unknown)
