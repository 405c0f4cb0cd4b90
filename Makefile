# `make report` and `make test` are all a newcomer needs; each makes .venv if it is not there.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PRESET ?= tiny
BIN := .venv/bin
INSTALLED := .venv/.installed
SITE := build/site-venv
# files in parallel, a process for each core
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
.PHONY: report test test-unit test-all chaos lint audit lab site clean

# only what is missing or out of date is done; ARGS="-p corpus /data/text" gives parameters
report: $(INSTALLED)
	$(BIN)/threeml report -p preset $(PRESET) $(ARGS)

# what an edit needs: no process is started, no run is longer than seconds
test-unit: $(INSTALLED)
	$(PYTEST) -m "not slow and not gpu" tests/unit tests/golden

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not gpu"

test-all: $(INSTALLED)
	$(PYTEST)

# 20 kills of a small pre-training at random moments; it must end as one that was left alone
chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# known vulnerabilities of the pinned versions; needs the network, so it is no part of lint
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# for this machine alone, behind Jupyter's own token
lab: $(INSTALLED)
	$(BIN)/jupyter lab --ip=127.0.0.1 notebooks

# docs, API reference and committed reports in build/site; the tools have a virtual environment of their own
site: $(SITE)/.installed
	$(SITE)/bin/python scripts/build_site.py

$(SITE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group site
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cluster,data,export,finetune,notebooks,report,tensorboard,trainer,test,dev]"
	touch $@

clean:
	rm -rf .venv runs build *.egg-info
