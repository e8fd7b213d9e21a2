"""This process: its version, its parent, and the commands that a message shows."""

from featuremill.base.this_process import (
    INTERRUPTS,
    SNAKEFILE,
    VERSION,
    die_with_parent,
    free_memory_mb,
    is_output_read,
    versions,
)
from featuremill.store.command_line import again as command_again

__all__ = [
    "INTERRUPTS",
    "SNAKEFILE",
    "VERSION",
    "command_again",
    "die_with_parent",
    "free_memory_mb",
    "is_output_read",
    "versions",
]
