"""Put the modules that tests of the primitives share on the path, also for tests in subfolders."""
