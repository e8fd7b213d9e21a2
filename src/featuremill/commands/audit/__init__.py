"""Comparing the 16-bit dtypes with fp32: `featuremill audit`."""

from featuremill.step import Command

COMMAND = Command(
    "measure how far bf16 and fp16 are from fp32 on your own proteins",
    "featuremill.commands.audit.command",
)
