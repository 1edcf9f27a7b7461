"""Puts the modules that tests of the object tier of topics share on the path, for those in sub-folders too."""
