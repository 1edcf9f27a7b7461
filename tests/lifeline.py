"""
The end of the line to a supervisor that children of a pipeline hold, for those that run in a thread of a test.
"""

import threading


class Lifeline:
    """Holds until it is let go."""

    def __init__(self):
        self.gone = threading.Event()

    def wait(self, timeout_s):
        return self.gone.wait(timeout_s)

    def reload_asked(self):
        return False
