"""
A listing that is made while segments are made: what it shows has no hole.
"""

from aof_as_log import ROOT, AofAsLog

from quiver.aof.files import LogFiles
from quiver.testing.crashfs import CrashFileSystem


class Late:
    """Files whose first listing misses one name, as a directory that changes meanwhile may."""

    def __init__(self, files, missed):
        self._files = files
        self._missed = missed

    def __getattr__(self, name):
        return getattr(self._files, name)

    def list_dir(self, path):
        missed, self._missed = self._missed, None
        return [name for name in self._files.list_dir(path) if name != missed]


def test_nothing_below_the_last_segment_is_missing():
    """Whoever reads on behind the last one that was shown has been shown all before it."""
    files = CrashFileSystem()
    log = AofAsLog(files, rolls=True)
    for number in range(6):
        log.append(b"%d" % number, durable=True)
        log.upkeep()
    log.close()
    all_names = LogFiles(f"{ROOT}/orders", files=files).names()
    assert len(all_names) > 3
    assert LogFiles(f"{ROOT}/orders", files=Late(files, str(all_names[1]))).names() == all_names
    assert LogFiles(f"{ROOT}/orders", files=Late(files, str(all_names[-1]))).names() == all_names[:-1]
