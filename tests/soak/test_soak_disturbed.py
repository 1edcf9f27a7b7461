"""
The same pipeline in other weather: parts that are restarted in any order, a far side that comes
late, a full disk.
"""

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
    """A producer, from here to the end of the block; what was confirmed meanwhile is in `sent`."""

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
    """What is there goes on meanwhile; the far side has everything once it is there."""
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
    """Far side, ingest, Spark, and all of it, killed or stopped, one beginning before the other is back."""
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
def test_a_part_that_stands_still_for_minutes_goes_on(tmp_path, part):
    """
    A process that is stopped is alive and answers nobody: nothing is lost, and nothing is exported twice,
    afterwards.
    """
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
    """A file system of its own on *image*, which becomes read-only at the first error, as many servers are set up."""

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
        """Let the kernel see an error: every write fails from now on, and reads go on."""
        found = subprocess.run(["losetup", "-j", str(self.image)], capture_output=True, text=True, check=True)
        device = pathlib.Path(found.stdout.partition(":")[0]).name
        pathlib.Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


@pytest.fixture
def ext4(tmp_path):
    """One that is mounted."""
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
    """After a check of the disk and a restart everything that was confirmed is exported once."""
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
    """Let real time go by: the processes beside this one have clocks of their own."""
    threading.Event().wait(seconds)


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a disk of its own that is soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path):
    """Write until nothing more fits."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_a_full_disk_in_the_middle(small_disk):
    """
    Buffer, files, letters, Spark's notes and all logs are on it. What is confirmed is never lost, no process gives up
    for good, and everything goes on when there is room again.
    """
    far = FarSide()
    with Pipeline(small_disk, far.port) as pipeline:
        with Sending(pipeline, 0) as producer:
            for number in range(3):
                wait_for(pipeline, producer, 200)
                fill(small_disk / "full")
                # The log has its blocks already, so that much is still taken; then it is refused.
                wait_until_tried(pipeline, producer, 200)
                pipeline.kill_child(("spark", "ingest", "neither")[number])
                (small_disk / "full").unlink()
            wait_for(pipeline, producer, 200)
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()
    check(small_disk, far, producer.confirmed, producer.unknown)
