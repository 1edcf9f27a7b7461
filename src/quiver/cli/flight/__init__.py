"""`quiver serve`: stores over Arrow Flight."""
