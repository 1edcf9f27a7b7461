"""Put the shared modules of the object tier tests of topics on the path, also for tests in subfolders."""
