# What stands in place of all rules where the Python of Snakemake lacks the package: a catalogue's
# `snakemake --lint` can read the workflow, and everybody else is told what to install.

import sys
from types import SimpleNamespace

from snakemake.exceptions import WorkflowError

if "--lint" not in sys.argv:
    raise WorkflowError(
        f"featuremill is not installed in the Python of this Snakemake ({sys.executable}); type: "
        "pip install 'featuremill[esm2]', or in a checkout: make run."
    )

mill = SimpleNamespace(is_target=True)


localrules:
    all,


rule all:
    default_target: True
