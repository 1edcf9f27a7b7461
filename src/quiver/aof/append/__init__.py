"""append."""
