"""Puts the modules that OTAP tests share on the path, also for sub-folders."""
