# `make report` and `make test` are all a newcomer needs; each makes .venv if it is not there.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PRESET ?= tiny
BIN := .venv/bin
INSTALLED := .venv/.installed
.PHONY: report test test-all lint lab clean

# only what is missing or out of date is done; ARGS="-p corpus /data/text" gives parameters
report: $(INSTALLED)
	$(BIN)/python -m threeml_core.reporting -p preset $(PRESET) $(ARGS)

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-all: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lab: $(INSTALLED)
	$(BIN)/jupyter lab notebooks

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[data,finetune,notebooks,report,tensorboard,test,dev]"
	touch $@

clean:
	rm -rf .venv runs build *.egg-info
