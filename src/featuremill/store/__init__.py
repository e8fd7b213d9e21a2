"""Every file of a run: its path, its content, who may write it, and its reader."""
