"""The connection to a supervisor that children of a pipeline have, for those that run in a thread of a test."""

import threading

from quiver.clock import SYSTEM_CLOCK


class StubWatchdog:
    """Blocks until it is released; before that, it can announce that the pipeline closes."""

    def __init__(self):
        self.gone = threading.Event()
        self.closing = threading.Event()
        self.is_closing = False

    def wait(self, timeout):
        until = SYSTEM_CLOCK.monotonic() + timeout
        while not self.gone.wait(0.01) and SYSTEM_CLOCK.monotonic() < until:
            if self.closing.is_set() and not self.is_closing:
                self.is_closing = True
                return False
        return self.gone.is_set()

    def left_s(self, drain_s):
        return drain_s

    def reload_requested(self):
        return False
