"""`python -m quiver` is the command `quiver`, where that one is not on the search path."""

from quiver.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
