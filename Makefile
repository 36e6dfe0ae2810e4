# `make quickstart` and `make test` work from a fresh clone with Python ≥ 3.11 and make, nothing else.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# One computing thread per test process: the tests already fill the cores.
TEST := OMP_NUM_THREADS=1 MPLBACKEND=agg $(BIN)/python -m pytest -n auto --dist worksteal

SCALE := laptop
RUNS := runs
REPORT := report

.PHONY: help install quickstart study more-seeds test test-full test-slow test-slurm test-slurm-again test-slurm-slow lint format bench clean

help:
	@echo "make quickstart   train the learning-rate grid on real data and build the report (minutes)"
	@echo "make study        the study in parts, resumable, and its report (hours; first shows what each part costs)"
	@echo "make more-seeds   more seeds where the study has left claims undetermined, and the report again"
	@echo "make test         lint, types and the fast tests"
	@echo "make test-full    the long tests as well"
	@echo "make test-slurm   a real SLURM on this machine (root; apt-get install slurm-wlm munge slurmdbd mariadb-server)"
	@echo "make bench        the cost of a step, of the input pipeline, of a sweep"
	@echo "make format       let ruff format and fix the code"
	@echo "make clean        remove caches (never runs)"

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing into $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# A failed trial does not keep the others from the report; it keeps make from success.
quickstart: install
	@$(BIN)/python -m study.run -m lr=0.1,0.003,0.0001 norm=bn,none scale=$(SCALE) sweep=quickstart-seed0 runs_dir=$(RUNS); \
	code=$$?; [ $$code -gt 1 ] || $(BIN)/python -m analysis.report --runs $(RUNS) --sweep quickstart-seed0 --out $(REPORT) --brief && exit $$code

study: install
	@$(BIN)/python -m study.parts run; code=$$?; \
	[ $$code -gt 1 ] || $(BIN)/python -m analysis.report --runs runs --out report; exit $$code

# The seeds of a second look, for the claims that the first ones left undetermined. Kept in a variable first: a
# pipe would hide that they could not be told.
more-seeds: install
	@commands=$$($(BIN)/python -m analysis.undecided --runs runs) || exit; \
	[ -n "$$commands" ] || echo "nothing to add"; \
	printf '%s\n' "$$commands" | PATH="$(CURDIR)/$(BIN):$$PATH" sh -e
	@$(BIN)/python -m analysis.report --runs runs --out report

lint: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint
	@$(TEST) -m "not slow and not slurm"

test-slow: install
	@$(TEST) -m "slow and not slurm"

# A SLURM of its own on this machine; skips by name without root or Debian's packages. One cluster, so no -n.
test-slurm: install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm -m "slurm and not slow"

test-slurm-again: install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm -m "slurm and not slow" --last-failed --last-failed-no-failures none

test-slurm-slow: install
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm -m "slurm and slow"

test-full: test test-slow test-slurm test-slurm-slow

bench: install
	@$(BIN)/python -m study.bench

format: install
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
