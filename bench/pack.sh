#!/bin/bash
# Gather in .dev/site.tar.xz what a GPU machine without a network lacks to do all that this project
# can: Snakemake, what readers and workloads import, and the tests' packages, for Python 3.12 (or
# PACK_PYTHON). Run it in the project's root as `bash bench/pack.sh`; bench/README.md says how to go on.
# vl-convert does not travel (33 MB): there, end runs with `-- merge`.
set -eu
cd "$(dirname "$0")/.."
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
platforms="--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any"
for n in 39 35 34 31 28 27 24 17; do platforms="$platforms --platform manylinux_2_${n}_x86_64"; done
names="$($python -m bench.needs) snakemake argparse-dataclass conda-inject configargparse docutils dpath
  fastjsonschema gitpython gitdb smmap greenlet sqlalchemy sqlmodel humanfriendly immutables jupyter-core
  nbformat platformdirs pulp reretry smart-open tenacity throttler traitlets yte
  snakemake-interface-common snakemake-interface-executor-plugins snakemake-interface-logger-plugins
  snakemake-interface-report-plugins snakemake-interface-scheduler-plugins
  snakemake-interface-storage-plugins rich altair psutil wrapt tabulate jinja2 markupsafe requests
  python-dateutil tzdata mdurl markdown-it-py narwhals certifi idna urllib3 charset-normalizer anndata
  legacy-api-wrap array-api-compat natsort zarr numcodecs donfig google-crc32c llguidance tokenizers
  transformers"
rm -rf .dev && mkdir -p .dev/wheels .dev/own .dev/site/bin
$python -m pip download -qq --no-deps --only-binary=:all: -c constraints.txt $names \
  --implementation cp --python-version "${PACK_PYTHON:-3.12}" $platforms -d .dev/wheels
$python -m pip wheel -q --no-deps connection-pool==0.0.3 -w .dev/wheels
$python -m pip wheel -q --no-deps . -w .dev/own
for wheel in .dev/wheels/*.whl; do $python -m zipfile -e "$wheel" .dev/site; done
# Of our own, the entry points alone: the code is that of src.
$python -m zipfile -e .dev/own/featuremill*.whl .dev/own/x
cp -r .dev/own/x/featuremill-*.dist-info .dev/site/
rm -rf .dev/site/pulp/solverdir/cbc/{osx,win} .dev/site/pulp/solverdir/cbc/linux/{arm64,i32}
for name in featuremill snakemake; do
  printf '#!/bin/sh\nexec python3 -m %s "$@"\n' $name >.dev/site/bin/$name
  chmod +x .dev/site/bin/$name
done
tar c -C .dev site | xz -T2 -4 >.dev/site.tar.xz
rm -rf .dev/wheels .dev/own .dev/site
echo "$(git ls-files -z | xargs -0 du -cb | tail -n 1 | cut -f 1) bytes of the project's files and" \
  "$(stat -c %s .dev/site.tar.xz) in .dev/site.tar.xz travel"
