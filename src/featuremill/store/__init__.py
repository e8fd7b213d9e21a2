"""Every file of a run: where it is, what it says, who may write it, and how it is read."""
