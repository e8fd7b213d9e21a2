"""`python -m without_internals NAME,NAME… WORDS…`: Snakemake, where these of
featuremill's reaches into its internals find nothing to hold on to."""

import sys

from snakemake.cli import main

from featuremill.flow import internals


def gone(*_, **__):
    raise AttributeError("it is gone")


names, *words = sys.argv[1:]
for name in names.split(","):
    internals.INTERNAL_CALLS[name].function = gone
sys.argv = ["snakemake", *words]
main()
