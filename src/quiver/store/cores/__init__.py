"""cores."""
