"""Put the modules that the tests of the store share on the path, also for those in subfolders."""
