"""Puts the modules that tests of the QWP client share on the path, also for those in sub-folders."""
