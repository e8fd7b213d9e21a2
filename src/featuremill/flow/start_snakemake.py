"""Snakemake as `featuremill run` becomes it: Ctrl-C while it starts ends it without a traceback.

Once it has read the workflow, `screen.py` answers.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from snakemake.cli import main

main()
