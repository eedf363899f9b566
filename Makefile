# Every target makes the virtual environment itself when it is missing or older than what it is made from.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
READY := .venv/.ready

.PHONY: help install run test test-fast lint lock clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY)  ## Make .venv from the locked requirements; .venv/bin/jali is the command

$(READY): requirements.lock pyproject.toml
	rm -rf .venv
	$$(command -v $(PYTHON) || command -v python3) -m venv .venv
	.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Jali needs Python 3.11; set PYTHON=/path/to/python3.11")'
	.venv/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	.venv/bin/python -m pip check
	.venv/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	touch $@

run: $(READY)  ## Cross-validate and publish on the sample (MovieLens latest-small)
	.venv/bin/jali run

test: $(READY)  ## All tests
	.venv/bin/python -m pytest -q -n 2 --dist worksteal

test-fast: $(READY)  ## The tests that take seconds
	.venv/bin/python -m pytest -q -m "not slow"

lint: $(READY)  ## Style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

lock: $(READY)  ## Resolve the requirements again after editing pyproject.toml
	.venv/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --extra sample --extra dev \
	  --output-file requirements.lock pyproject.toml

clean:  ## Remove .venv and caches; .jali, with the ledger, stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build *.egg-info
