# Two commands matter: `make lab` opens the course, `make test` runs everything. Each sets up what it needs first:
# an environment in .venv with the versions of constraints.txt, and the language model in your cache folder.
# `make lab PYTHON=python3.12` makes the environment with another Python.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# What an installation depends on. It is installed again when this changes.
KEY := $(shell cat pyproject.toml constraints.txt | cksum)
HERE := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help lab test test-gpu notebooks bench bench-gpu clean setup setup-dev environment

help:
	@echo "make lab        open the course in JupyterLab"
	@echo "make test       run every test, and every notebook"
	@echo "make notebooks  build the notebooks from solutions/*.py"
	@echo "make bench      run the measurements in benchmarks/"
	@echo "make test-gpu   run the tests that need a GPU; make bench-gpu measures the kernels on it"
	@echo "make clean      remove the environment and what the tools left behind"
	@echo "PYTHON=python3.12 picks the Python of the environment (3.10 to 3.13)."

lab: setup
	@$(RUN) -m pagedlab lab

# Two workers with a thread each: threads that outnumber the cores wait for each other.
test: setup-dev
	@$(RUN) -m pagedlab fetch
	@$(RUN) -m pagedlab.engine.warm_up
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n 2

# Tests of their own, in a process of their own: Triton either interprets, as in all others, or compiles.
test-gpu: setup-dev
	@$(RUN) -m pagedlab fetch
	@$(RUN) -m pytest -m gpu tests/gpu_device

notebooks: setup-dev
	@$(RUN) -m pagedlab fetch
	@$(RUN) -m pagedlab.course.builder

NOT_BENCH := benchmarks/fuzz.py benchmarks/serving_workload.py benchmarks/gpu_attention.py

bench: setup-dev
	@$(RUN) -m pagedlab fetch
	@set -e; for script in $(filter-out $(NOT_BENCH),$(wildcard benchmarks/*.py)); do echo "== $$script"; $(RUN) "$$script"; done

bench-gpu: setup-dev
	@$(RUN) benchmarks/gpu_attention.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: environment
	@$(call installed,plain) || $(call installed,dev) || $(call install,.,plain)

setup-dev: environment
	@$(call installed,dev) || $(call install,.[dev],dev)

installed = [ "$$(cat $(VENV)/.installed-$(1) 2>/dev/null)" = "$(KEY)" ]
install = { $(RUN) -m pip install --disable-pip-version-check -c constraints.txt -e "$(1)" && \
	    echo "$(KEY)" > $(VENV)/.installed-$(2); }

# An environment remembers the folder it was made in: moved or copied elsewhere, or with its Python gone, it is made
# anew. Where it cannot import this folder's pagedlab, that is installed again. (Tried from inside .venv: from here
# Python would find the package even when it is not installed.)
IMPORTED = import os, sys, pagedlab; sys.exit(not os.path.samefile(os.path.dirname(pagedlab.__file__), "../pagedlab"))

environment:
	@if ! $(RUN) -c "" 2>/dev/null || [ "$$(cat $(VENV)/.made-in 2>/dev/null || echo "$(HERE)")" != "$(HERE)" ]; then \
	  $(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "'$(PYTHON)' is not a Python from 3.10 to 3.13. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }; \
	  $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "Python's venv module is missing. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }; \
	  echo "Making the environment in $(VENV)"; \
	  $(PYTHON) -m venv --clear $(VENV) && echo "$(HERE)" > $(VENV)/.made-in || exit 1; \
	fi
	@(cd $(VENV) && bin/python -c '$(IMPORTED)') 2>/dev/null || rm -f $(VENV)/.installed-*
