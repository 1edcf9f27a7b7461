"""Puts the modules that tests of the primitives share on the path, for those in sub-folders too."""
