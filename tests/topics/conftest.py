"""Puts the modules that tests of topics share on the path, for those in sub-folders too."""
