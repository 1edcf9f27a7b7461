"""removal."""
