#!/bin/bash
# featuremill itself, into an environment that Snakemake has just made with --sdm conda: a link to the very
# package that Snakemake runs, so that rules and code never differ in version, and its metadata, whose entry
# points name its workloads and outputs. Without it the jobs would find the other `featuremill` on the PATH and
# run in its environment, not in this one.
set -euo pipefail
site="$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
ln -sfn "$FEATUREMILL_PACKAGE" "$site/featuremill"
cp -R "$FEATUREMILL_METADATA" "$site/"
printf '#!/bin/sh\nexec "%s/bin/python" -m featuremill "$@"\n' "$CONDA_PREFIX" >"$CONDA_PREFIX/bin/featuremill"
chmod +x "$CONDA_PREFIX/bin/featuremill"
