"""Put the shared modules of the OTAP tests on the path, also for tests in subfolders."""
