"""Puts the modules that tests of OTAP share on the path, for those in sub-folders too."""
