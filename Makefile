# featuremill for people and for CI. `make` alone lists what there is.
#
# `make run` and `make test` need Python 3.11 or newer and make; everything else goes into .venv.
# Another interpreter: `make run PYTHON=python3.12`. More for snakemake: `make run EXTRA="-n"`.

PYTHON ?= python3
EXTRA ?=
WHEELS_PYTHON ?= 3.12
# What a GPU machine's image lacks besides: make bench-wheels WHEELS=pyarrow (55 MB).
WHEELS ?=
# Of make bench-gpu, in the order of bench/README.md, each at most four minutes; small,large is one after the
# other.
PART ?= tests,small,residues,workloads,large,slots,faults,bits
# Tests side by side, by files. Most wait for processes that they start, so one more than 2 cores have.
WORKERS ?= 3
BIN := .venv/bin
# The distribution of its own that is built from src/featuremill/lease.
GPU_LOCAL := packages/snakemake-executor-plugin-gpu-local
# Tests start a thousand Pythons: what one has compiled, the next ones need not.
export PYTHONDONTWRITEBYTECODE :=
# Where the project's own Python stands: what a user writes beside it is theirs.
CODE := src packages packaging tests bench training profiles examples docs/conf.py docs/pictures

# uv does not read pip's settings: where PIP_… names an index or a wheel folder, pip honours it and uv
# would fetch from elsewhere (several GB of CUDA wheels in place of a CPU torch that lies at hand).
UV := $(if $(PIP_FIND_LINKS)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL)$(PIP_NO_INDEX),,$(shell command -v uv))
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install -qq --no-input)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two installs must not write to one .venv at once; pytest and snakemake are parallel by themselves.
.NOTPARALLEL:
.PHONY: help run test test-slow test-gpu mutants lint format bench bench-gpu bench-scale bench-wheels docs pictures constraints release clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: .venv/.run ## compute the demo's features into results/demo (EXTRA="…" goes to snakemake)
	@$(BIN)/python -m featuremill.flow.start_snakemake --cores all $(EXTRA)

test: lint ## lint, then the fast tests: what CI runs
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: .venv/.test-clusters .venv/.docs ## the tests that take minutes (EXTRA="…" goes to pytest)
	@$(BIN)/python -m pytest -q -m "slow and not gpu" $(EXTRA)

test-gpu: .venv/.test ## the tests that need an NVIDIA GPU
	@$(BIN)/python -m pytest -q -m gpu -n logical --maxprocesses 16 --dist worksteal $(EXTRA)

mutants: .venv/.test ## break the code on purpose in over a hundred ways and see a test fail each time (minutes)
	@$(BIN)/python tests/mutants.py $(EXTRA)

lint: .venv/.test ## style, types, workflow, generated files
	@$(BIN)/ruff check --quiet --output-format concise $(CODE)
	@$(BIN)/ruff format --quiet --diff $(CODE)
	@$(BIN)/snakefmt --compact-diff --check Snakefile workflow src examples training >.venv/lint.log 2>&1 || { cat .venv/lint.log; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/featuremill config-docs --check
	@for script in .ci/run $$(find envs $(CODE) -name '*.sh'); do bash -n "$$script" || exit 1; done
	@$(BIN)/python -m snakemake --lint >.venv/lint.log 2>&1 || { cat .venv/lint.log; exit 1; }
	@echo "lint: clean"

format: .venv/.test ## let the tools arrange the code
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format --quiet $(CODE)
	@$(BIN)/snakefmt Snakefile workflow src examples training 2>.venv/lint.log || { cat .venv/lint.log; exit 1; }
	@$(BIN)/featuremill config-docs
	@$(BIN)/python tests/house.py --lower

bench: .venv/.bench ## speed on this CPU beside fair-esm, transformers, OpenVINO (EXTRA="…" goes to bench.run)
	@$(BIN)/python -m bench.run $(EXTRA)
	@$(if $(EXTRA),:,$(BIN)/python -m bench.esmc)

bench-gpu: .venv/.test ## tests and speed on one GPU: PART=tests, then small and others, of four minutes each
	@$(BIN)/python -m bench.run --gpu --part $(PART) $(EXTRA)

bench-scale: .venv/.test ## seconds and memory of plan, extract and merge for 50,000 records and more
	@$(BIN)/python -m bench.scale $(EXTRA)

bench-wheels: $(BIN)/python ## gather in bench/.wheels what a GPU machine without a network lacks
	@rm -rf bench/.wheels
	@$(BIN)/python -m pip download -qq --no-deps --only-binary=:all: -c constraints.txt \
	  $$($(BIN)/python -m bench.needs) $(WHEELS) \
	  --implementation cp --python-version $(WHEELS_PYTHON) \
	  $(foreach n,39 35 34 31 28 27 24 17,--platform manylinux_2_$(n)_x86_64) \
	  --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any -d bench/.wheels
	@$(BIN)/python -m pip wheel -qq --no-deps . -w bench/.wheels  # for its entry points; the code is that of src
	@$(BIN)/python -m bench.needs $(if $(WHEELS),--size,--limit)

docs: .venv/.docs ## build the site of README and docs into .site, and check its links
	@rm -rf .site
	@$(BIN)/python -m sphinx -qEaWn -d .venv/doctrees -c docs . .site $(EXTRA)
	@echo "open .site/index.html"

pictures: .venv/.test .venv/.docs ## make docs/pictures again from the demo (minutes; needs chromium)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/pictures/make.py

constraints: $(BIN)/python ## resolve all but torch afresh and pin it in constraints.txt (takes minutes)
	@rm -rf .venv/pins && $(PYTHON) -m venv .venv/pins
	@# torch keeps its pin: a newer one is a decision of its own (kernels, drivers, tolerances). So does
	@# triton: torch's builds for NVIDIA demand exactly one, which the build for CPUs does not tell.
	@grep -E '^(torch|triton)==' constraints.txt > .venv/held.txt
	@.venv/pins/bin/python -m pip install -qq --no-input -c .venv/held.txt -e '.[bench,docs,esm2,remote,test,test-clusters]'
	@# What torch brings for one kind of GPU stays unpinned, and so do local builds such as +cpu.
	@{ sed -n '/^#/p' constraints.txt; \
	  .venv/pins/bin/python -m pip freeze --exclude-editable \
	  | sed -E 's/\+.*//; /^(cuda-|nvidia-)/{/^nvidia-ml-py=/!d;}' | LC_ALL=C sort -f; \
	  } > .venv/constraints.txt
	@mv .venv/constraints.txt constraints.txt && rm -rf .venv/pins
	@echo "constraints.txt is new; run make test."

release: .venv/.test ## build what a release has into dist, twice, and try it: VERSION=0.1.0
	@$(BIN)/python packaging/release.py $(VERSION) $(EXTRA)

clean: ## remove .venv and caches; results, weights and logs stay
	@rm -rf .venv .site bench/.wheels .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- .venv: one stamp an extra, renewed when pyproject.toml or constraints.txt change ----

.venv/.run: pyproject.toml constraints.txt | $(BIN)/python
	@$(call install,esm2)

.venv/.test: pyproject.toml constraints.txt $(wildcard $(GPU_LOCAL)/pyproject.toml) | $(BIN)/python
	@$(call install,esm2$(comma)remote$(comma)test,-e $(GPU_LOCAL))
	@touch .venv/.run

.venv/.bench: pyproject.toml constraints.txt | $(BIN)/python
	@$(call install,esm2$(comma)remote$(comma)test$(comma)bench)
	@touch .venv/.run .venv/.test

.venv/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(call install,docs)

.venv/.test-clusters: pyproject.toml constraints.txt | $(BIN)/python
	@$(call install,esm2$(comma)remote$(comma)test$(comma)test-clusters)
	@touch .venv/.run .venv/.test

comma := ,
define install
echo "Installing into .venv (once, about 2 minutes)…"
$(INSTALL) -c constraints.txt $(2) -e '.[$(1)]' \
  || { echo "make: installing failed; the lines above say why. Once that is fixed, the same command continues." >&2; exit 1; }
touch $@
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: featuremill needs Python 3.11 or newer, but '$(PYTHON) --version' says: $$($(PYTHON) --version 2>&1 | head -n 1)." \
	    "Install one and name it, as in: make run PYTHON=python3.12" >&2; exit 1; }
	@$(if $(UV),true,$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null) || { \
	  echo "make: $(PYTHON) comes without its venv module; install it (Debian, Ubuntu: apt install python3-venv) or uv." >&2; exit 1; }
	@rm -rf .venv
	@$(if $(UV),$(UV) venv --quiet --python "$(PYTHON)" .venv,$(PYTHON) -m venv .venv) || { rm -rf .venv; exit 1; }
