"""Snakemake as `featuremill run` becomes it.

Ctrl-C while it starts ends it without a traceback; once it has read the workflow, `screen.py`
answers. It ends with the exit status of what failed, where Snakemake always ends with 1.
"""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from snakemake.cli import main

from featuremill.flow import internals

internals.keep_own_profile_quiet()
try:
    main()
except SystemExit as end:
    if end.code != 1:
        raise
    from featuremill.flow.screen import exit_status

    sys.exit(exit_status())
