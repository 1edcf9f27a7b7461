"""Put the shared modules of the topic tests on the path, also for tests in subfolders."""
