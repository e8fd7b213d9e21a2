"""The built-in steps; like those of other packages, each is an entry point that can be removed."""
