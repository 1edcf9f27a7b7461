"""Puts the modules that tests of pipelines share on the path, for those in sub-folders too."""
