"""Puts the modules that tests of the store share on the path, for those in sub-folders too."""
