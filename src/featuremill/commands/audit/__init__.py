"""The command `featuremill audit`: compare the 16-bit dtypes with fp32."""

from featuremill.step import Command

COMMAND = Command(
    "measure how far bf16 and fp16 are from fp32 on your own proteins",
    "featuremill.commands.audit.command",
)
