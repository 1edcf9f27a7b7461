"""Put the shared modules of the AOF2 tests on the path, also for tests in subfolders."""
