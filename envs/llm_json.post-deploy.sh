#!/bin/bash
# featuremill itself, into an environment that Snakemake has just made with --sdm conda: a link to the very
# package that Snakemake runs, so that rules and code never differ in version. Without it the jobs would find
# the other `featuremill` on the PATH and run in its environment, not in this one.
set -euo pipefail
ln -sfn "$FEATUREMILL_PACKAGE" "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/featuremill"
printf '#!/bin/sh\nexec "%s/bin/python" -m featuremill "$@"\n' "$CONDA_PREFIX" >"$CONDA_PREFIX/bin/featuremill"
chmod +x "$CONDA_PREFIX/bin/featuremill"
