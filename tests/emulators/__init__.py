"""Emulators of the object stores of two providers, for `make test-emulators`."""
