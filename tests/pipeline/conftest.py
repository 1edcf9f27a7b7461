"""Puts the shared modules of the pipeline tests on the path, also for tests in sub-folders."""
