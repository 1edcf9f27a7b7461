"""questdb."""
