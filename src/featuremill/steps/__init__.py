"""The steps that come along; each is found as those of other packages are, and may be removed."""
