# `make demo` and `make test` set everything up in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types benchmarks test-gpu clean

help:
	@echo "make demo        a real OpenEvolve search with and without the filter, about 3 minutes"
	@echo "make test        style, types and all tests"
	@echo "make benchmarks  the figures under benchmarks/results (an hour or more)"
	@echo "make test-gpu    the tests that need an NVIDIA GPU"

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[openevolve,dev]"
	touch $(STAMP)

demo: install
	$(BIN)/gpu-forecasters compare --task cross_entropy --host openevolve --budget 32 --seeds 5 \
	  --arms baseline,surrogate --out runs/demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest

benchmarks: install
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.warm_start
	$(BIN)/python -m benchmarks.search --host openevolve

test-gpu: install
	$(BIN)/python -m pytest -m gpu

clean:
	rm -rf $(VENV) runs
