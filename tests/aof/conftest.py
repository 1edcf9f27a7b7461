"""Puts the modules that tests of AOF2 logs share on the path, for those in sub-folders too."""
