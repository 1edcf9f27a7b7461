"""Put the shared modules of the QWP client tests on the path, also for tests in subfolders."""
