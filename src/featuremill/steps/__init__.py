"""The steps that come along; each is found as a stranger's is, and may be removed."""
