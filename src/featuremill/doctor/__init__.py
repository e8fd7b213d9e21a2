"""Will this machine do, and are its numbers right."""
