"""otap."""
