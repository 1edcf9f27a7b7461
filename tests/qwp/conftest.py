"""Puts the modules that tests of the QWP client share on the path, for those in sub-folders too."""
