"""slots."""
