# `make report` and `make test` are all a newcomer needs; each makes .venv if it is not there.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
PRESET ?= tiny
BIN := .venv/bin
INSTALLED := .venv/.installed
# the report of another preset takes its values from params/<preset>.yaml
PAPERMILL := TQDM_DISABLE=1 $(BIN)/papermill -k python3 --no-progress-bar --log-level WARNING -p preset $(PRESET)
EXECUTED := runs/notebooks/$(PRESET)

.PHONY: report test test-all lint lab clean

report: $(INSTALLED)
	rm -rf $(EXECUTED) && mkdir -p $(EXECUTED)/others
	$(PAPERMILL) notebooks/00_cost_model.ipynb $(EXECUTED)/00_cost_model.ipynb
	$(PAPERMILL) notebooks/01_prepare_data.ipynb $(EXECUTED)/01_prepare_data.ipynb
	$(PAPERMILL) notebooks/02_pretrain.ipynb $(EXECUTED)/others/vanilla.ipynb -p architecture vanilla
	$(PAPERMILL) notebooks/02_pretrain.ipynb $(EXECUTED)/others/cross.ipynb -p architecture cross
	$(PAPERMILL) notebooks/02_pretrain.ipynb $(EXECUTED)/02_pretrain.ipynb -p architecture self
	$(PAPERMILL) notebooks/03_finetune.ipynb $(EXECUTED)/03_finetune.ipynb
	$(PAPERMILL) notebooks/07_mutual_information.ipynb $(EXECUTED)/07_mutual_information.ipynb
	$(BIN)/python -m threeml_core.reporting $(EXECUTED) reports/$(PRESET) $(PRESET)
	@echo "The report is reports/$(PRESET)/index.html: open it in a browser."

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
