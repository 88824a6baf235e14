PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
TORCHAO := $(VENV)/torchao
TORCH  := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements-dev.txt)
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test check long long-passes long-samples bench-bfloat16 bench-capture bench-cpu bench-decoding bench-functions bench-growth bench-onnx bench-passes bench-preparing bench-quantize bench-start \
        long-onnx-samples long-shapes long-shapes-programs long-torchao report-onnx-zoo report-quantize report-road report-torch report-torchscript evidence evidence-status format clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 — \2/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## .venv with everything that tests, benchmarks and examples need

# torch goes first and alone: a resolver that sees it together with the rest may pick another, far larger build.
$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Ingot needs Python 3.11 or newer; say which one to use with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup: $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: $(TORCH)"
	@$(PIP) $(TORCH)
	@echo "setup: requirements-dev.txt"
	@$(PIP) -r requirements-dev.txt
	@echo "setup: ingot itself, editable"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(TORCHAO): requirements-torchao.txt $(STAMP)
	@echo "setup: torchao, apart from the rest"
	@$(PIP) --no-deps --upgrade --target $@ -r requirements-torchao.txt
	@touch $@

demo: setup  ## ResNet-50 and BERT-base compiled, beside eager, saved, and run without torch
	@$(BIN)/python examples/demo.py

test: setup  ## the tests, without the slow suites
	@$(BIN)/python -m pytest -q -n 2 -m "not slow"

check: setup  ## what CI runs: format, lint, types, import layers, tests
	@echo "check: ruff format" && $(BIN)/ruff format --quiet --check .
	@echo "check: ruff lint"   && $(BIN)/ruff check --quiet .
	@echo "check: mypy"        && $(BIN)/mypy --no-error-summary
	@echo "check: imports"     && $(BIN)/lint-imports --no-logo
	@echo "check: tests"       && $(BIN)/python -m pytest -q -n 2 -m "not slow"

long: setup  ## the slow suites
	@$(BIN)/python -m pytest -q -m slow

long-passes: setup  ## the slow suites of the passes: 2,000 random programs
	@$(BIN)/python -m pytest -q -m slow tests/passes

long-samples: setup  ## every sample of torch's operators, compiled and run, to docs/reports/operator_samples.md
	@$(BIN)/python -m tests.evidence run --force operator_samples

long-onnx-samples: setup  ## every sample of torch's operators as an ONNX model, to docs/reports/onnx_samples.md
	@$(BIN)/python -m tests.evidence run --force onnx_samples

report-onnx-zoo: setup  ## every model of the capture tests as an ONNX file, to docs/reports/onnx_zoo.md
	@$(BIN)/python -m tests.evidence run --force onnx_zoo

bench-onnx: setup  ## ONNX export and its result against torch.onnx.export, to benchmarks/results/onnx.json
	@$(BIN)/python -m tests.evidence run --force bench-onnx

bench-capture: setup  ## capture time against torch.export, to benchmarks/results/capture.json
	@$(BIN)/python -m tests.evidence run --force bench-capture

bench-passes: setup  ## the road of passes against run_decompositions(), to benchmarks/results/passes.json
	@$(BIN)/python -m tests.evidence run --force bench-passes

bench-cpu: setup  ## Ingot beside eager, torch.compile, ONNX Runtime and OpenVINO, to benchmarks/results/cpu.json
	@$(BIN)/python -m tests.evidence run --force bench-cpu

bench-bfloat16: setup  ## precision="bfloat16" beside float32, to benchmarks/results/bfloat16.json
	@$(BIN)/python -m tests.evidence run --force bench-bfloat16

bench-quantize: setup $(TORCHAO)  ## int8 beside float32, ONNX Runtime and OpenVINO, to benchmarks/results/quantize.json
	@$(BIN)/python -m tests.evidence run --force bench-quantize

bench-decoding: setup  ## one token of a Llama with weights of 32, 8 and 4 bits, to benchmarks/results/decoding.json
	@$(BIN)/python -m tests.evidence run --force bench-decoding

bench-functions: setup  ## attention and scans with functions inside, against torch, to benchmarks/results/functions.json
	@$(BIN)/python -m tests.evidence run --force bench-functions

bench-growth: setup  ## how compile and run time grow with depth and batch, to benchmarks/results/growth*.json
	@$(BIN)/python -m tests.evidence run --force bench-growth bench-growth-chains

bench-start: setup  ## a compiled file's start without torch, to benchmarks/results/start.json
	@$(BIN)/python -m tests.evidence run --force bench-start

report-road: setup  ## every model of the capture tests down the road of passes, to docs/reports/road.md
	@$(BIN)/python -m tests.evidence run --force road

long-shapes: setup  ## every float32 sample of torch's operators through shape analysis, to docs/reports/shapes.md
	@$(BIN)/python -m tests.evidence run --force shapes

long-shapes-programs: setup  ## shape analysis of 600 random programs with loops and branches
	@$(BIN)/python -m pytest -q -m slow tests/program/shapes

long-torchao: setup $(TORCHAO)  ## quantization beside torchao's, to docs/reports/quantize_torchao.md
	@PYTHONPATH=$(TORCHAO) $(BIN)/python -m pytest -q tests/quantize/test_torchao.py
	@$(BIN)/python -m tests.evidence run --force quantize_torchao

report-quantize: setup  ## accuracy of quantized models that are trained here, to docs/reports/quantize.md
	@$(BIN)/python -m tests.evidence run --force quantize

bench-preparing: setup $(TORCHAO)  ## prepare and convert of ResNet-50 beside torchao, to benchmarks/results/preparing.json
	@$(BIN)/python -m tests.evidence run --force bench-preparing

report-torchscript: setup  ## every script of the tests beside torch's own converter, to docs/reports/torchscript.md
	@$(BIN)/python -m tests.evidence run --force torchscript

evidence: setup $(TORCHAO)  ## every report and benchmark that is older than its code; ONLY="shapes road", MINUTES=60; goes on where it stopped
	@$(BIN)/python -m tests.evidence run $(ONLY) $(if $(MINUTES),--minutes $(MINUTES))

evidence-status:  ## which reports and benchmarks are older than the code they cover
	@$(BIN)/python -m tests.evidence status

report-torch: setup  ## the tests on the torch that is installed, as a row of docs/reports/torch_versions.md
	@$(BIN)/python -m tests.version_report --write docs/reports/torch_versions.md

format: setup  ## format, and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove .venv, caches and build output
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
