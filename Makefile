PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
TORCHAO := $(VENV)/torchao
PACKAGES := $(VENV)/packages
NODE_MODULES := viewer/node_modules/.package-lock.json
DOCS   := $(VENV)/.docs-done
CROSS  := $(VENV)/.cross-done
TORCH  := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements-dev.txt)
CUDA_PYTHON ?= python3
# Threads of torch that have nothing to do sleep: spinning, they take the cores from other test processes.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo viewer test test-arm test-cuda bench-cuda check test-slow docs docs-serve format clean evidence evidence-status \
        fuzz-passes fuzz-shapes opinfo-gradients opinfo-native opinfo-onnx opinfo-shapes \
        report-onnx-zoo report-packages report-passes report-quantize report-torch report-training test-torchao report-torchscript \
        bench-amx bench-bfloat16 bench-capture bench-cpu bench-decoding bench-functions bench-growth bench-onnx bench-passes \
        bench-preparing bench-quantize bench-scientific bench-sizes bench-start bench-threads bench-training

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1 — \2/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with everything that tests, benchmarks and examples need

# torch is installed first and alone: a resolver that sees it together with the rest may pick another, far larger build.
# Ingot's two distributions come from this tree and without their dependencies: pip never looks for them on PyPI.
$(STAMP): requirements-dev.txt pyproject.toml runtime/pyproject.toml runtime/build_backend.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Ingot needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup: $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: $(TORCH)"
	@$(PIP) $(TORCH)
	@echo "setup: requirements-dev.txt"
	@$(PIP) -r requirements-dev.txt
	@echo "setup: ingot-runtime and ingot, editable"
	@$(PIP) --no-deps --no-build-isolation -e ./runtime -e .
	@touch $@

$(TORCHAO): requirements-torchao.txt $(STAMP)
	@echo "setup: torchao, in a folder of its own"
	@$(PIP) --no-deps --upgrade --target $@ -r requirements-torchao.txt
	@touch $@

# An environment of its own, in which nothing but the lines of its file is installed: packages name other releases.
$(PACKAGES)/.done: tests/support/packages/requirements.txt requirements-dev.txt
	@echo "setup: $(PACKAGES)"
	@test -x $(PACKAGES)/bin/python || $(PYTHON) -m venv $(PACKAGES)
	@$(PACKAGES)/bin/python -m pip install -qq --disable-pip-version-check $(TORCH)
	@$(PACKAGES)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r $<
	@touch $@

demo: setup  ## compile ResNet-50 and BERT-base, compare them with eager, save them, and run them without torch
	@$(BIN)/python examples/demo.py

viewer: $(NODE_MODULES)  ## with Node.js: build the page of `ingot view` in src/ingot/viewer/assets and run its tests
	@cd viewer && npm --silent run build && npm --silent test

$(NODE_MODULES): viewer/package.json viewer/package-lock.json
	@cd viewer && npm ci --silent --no-audit --no-fund
	@touch $@

test: setup  ## run the tests, without the slow suites
	@$(PYTEST) -n 2 --dist worksteal -m "not slow"

test-arm: $(CROSS)  ## with qemu-user: operators and models on an emulated Arm processor, to docs/reports/aarch64.md
	@$(BIN)/python -m tests.evidence run --force aarch64

test-cuda:  ## on a machine with an NVIDIA GPU, a torch for it and NVRTC: kernels and models on the GPU
	@$(CUDA_PYTHON) -m pytest -q tests/targets/cuda
	@$(CUDA_PYTHON) -m tests.targets.cuda.gpu.sanitize

check: setup  ## run what CI runs: format, lint, types, import layers, names, file sizes, tests
	@echo "check: ruff format" && $(BIN)/ruff format --quiet --check .
	@echo "check: ruff lint"   && $(BIN)/ruff check --quiet .
	@echo "check: mypy"        && $(BIN)/mypy --no-error-summary
	@echo "check: imports"     && $(BIN)/lint-imports --no-logo
	@echo "check: names"       && $(BIN)/python tools/check_names.py
	@echo "check: wording"     && $(BIN)/python tools/check_wording.py
	@echo "check: layout"      && $(BIN)/python tools/check_layout.py
	@echo "check: tests"       && $(PYTEST) -n 2 --dist worksteal -m "not slow"

docs: $(DOCS)  ## build the documentation site in build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "docs: build/site/index.html"

docs-serve: $(DOCS)  ## serve the documentation on http://127.0.0.1:8000 and rebuild it on changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

$(DOCS): requirements-docs.txt $(STAMP)
	@echo "setup: requirements-docs.txt"
	@$(PIP) -r requirements-docs.txt -c requirements-dev.txt
	@touch $@

$(CROSS): requirements-cross.txt $(STAMP)
	@echo "setup: requirements-cross.txt"
	@$(PIP) -r requirements-cross.txt
	@touch $@

test-slow: setup  ## run the slow suites
	@$(PYTEST) -m slow

fuzz-passes: setup  ## run the passes on 2,000 random programs, to docs/reports/random_programs.md
	@$(BIN)/python -m tests.evidence run --force random_programs

opinfo-native: setup  ## compile and run every operator sample of torch, to docs/reports/operator_samples.md
	@$(BIN)/python -m tests.evidence run --force operator_samples

opinfo-gradients: setup  ## train on operator samples of torch, to docs/reports/gradient_samples.md
	@$(BIN)/python -m tests.evidence run --force gradient_samples

report-training: setup  ## train twelve models compiled and in eager, to docs/reports/training.md
	@$(BIN)/python -m tests.evidence run --force training

opinfo-onnx: setup  ## export every operator sample of torch to ONNX, to docs/reports/onnx_samples.md
	@$(BIN)/python -m tests.evidence run --force onnx_samples

report-onnx-zoo: setup  ## export every model of the capture tests to ONNX, to docs/reports/onnx_zoo.md
	@$(BIN)/python -m tests.evidence run --force onnx_zoo

bench-onnx: setup  ## compare ONNX export with torch.onnx.export, to benchmarks/results/onnx.json
	@$(BIN)/python -m tests.evidence run --force bench-onnx

bench-capture: setup  ## compare capture time with torch.export, to benchmarks/results/capture.json
	@$(BIN)/python -m tests.evidence run --force bench-capture

bench-passes: setup  ## compare the default pipeline with run_decompositions(), to benchmarks/results/passes.json
	@$(BIN)/python -m tests.evidence run --force bench-passes

bench-cpu: setup  ## compare with eager, torch.compile, ONNX Runtime and OpenVINO, to benchmarks/results/cpu.json
	@$(BIN)/python -m tests.evidence run --force bench-cpu

bench-cuda:  ## on a machine with an NVIDIA GPU: compare with torch.compile, to benchmarks/results/cuda.json
	@$(CUDA_PYTHON) benchmarks/cuda.py --prepare build/inductor
	@$(CUDA_PYTHON) benchmarks/cuda.py --prepared build/inductor --json benchmarks/results/cuda.json
	@$(CUDA_PYTHON) benchmarks/cuda_start.py

bench-threads:  ## on a machine with many cores: compare at 1, 4, 8 and 16 threads, to benchmarks/results/threads.json
	@$(CUDA_PYTHON) benchmarks/threads.py --json benchmarks/results/threads.json

bench-training: setup  ## compare training steps with eager and torch.compile, to benchmarks/results/training.json
	@$(BIN)/python -m tests.evidence run --force bench-training

bench-amx:  ## on a machine with AMX: bfloat16 and int8 compared with torch, to benchmarks/results/amx.json
	@$(CUDA_PYTHON) benchmarks/amx.py --json benchmarks/results/amx.json

bench-bfloat16: setup  ## compare precision="bfloat16" with float32, to benchmarks/results/bfloat16.json
	@$(BIN)/python -m tests.evidence run --force bench-bfloat16

bench-quantize: setup $(TORCHAO)  ## compare int8 with float32, ONNX Runtime and OpenVINO, to benchmarks/results/quantize.json
	@$(BIN)/python -m tests.evidence run --force bench-quantize

bench-decoding: setup  ## time one token of a Llama with 32-, 8- and 4-bit weights, to benchmarks/results/decoding.json
	@$(BIN)/python -m tests.evidence run --force bench-decoding

bench-functions: setup  ## compare attention and scans with user functions with torch, to benchmarks/results/functions.json
	@$(BIN)/python -m tests.evidence run --force bench-functions

bench-scientific: setup  ## compare FFTs, float64 and integers with torch, to benchmarks/results/scientific.json
	@$(BIN)/python -m tests.evidence run --force bench-scientific

bench-sizes: setup  ## compare one file at many sizes with static peers, to benchmarks/results/sizes.json
	@$(BIN)/python -m tests.evidence run --force bench-sizes

bench-growth: setup  ## measure how compile and run time grow with depth and batch, to benchmarks/results/growth*.json
	@$(BIN)/python -m tests.evidence run --force bench-growth bench-growth-chains

bench-start: setup  ## time a compiled file from process start to first result, to benchmarks/results/start.json
	@$(BIN)/python -m tests.evidence run --force bench-start

report-passes: setup  ## run the default pipeline on every model of the capture tests, to docs/reports/passes_zoo.md
	@$(BIN)/python -m tests.evidence run --force passes_zoo

opinfo-shapes: setup  ## infer the shapes of every float32 operator sample of torch, to docs/reports/shapes.md
	@$(BIN)/python -m tests.evidence run --force shapes

fuzz-shapes: setup  ## infer the shapes of 600 random programs with loops and branches
	@$(BIN)/python -m pytest -q -m slow tests/analysis/shape_inference

test-torchao: setup $(TORCHAO)  ## compare quantization with torchao, to docs/reports/quantize_torchao.md
	@PYTHONPATH=$(TORCHAO) $(BIN)/python -m pytest -q tests/quantization/test_torchao.py
	@$(BIN)/python -m tests.evidence run --force quantize_torchao

report-packages: setup $(PACKAGES)/.done  ## capture and compile models of many packages, to docs/reports/packages.md
	@$(BIN)/python -m tests.evidence run --force packages

report-quantize: setup  ## measure the accuracy of two quantized models, to docs/reports/quantize.md
	@$(BIN)/python -m tests.evidence run --force quantize

bench-preparing: setup $(TORCHAO)  ## compare prepare and convert of ResNet-50 with torchao, to benchmarks/results/preparing.json
	@$(BIN)/python -m tests.evidence run --force bench-preparing

report-torchscript: setup  ## compare TorchScript import with torch's converter, to docs/reports/torchscript.md
	@$(BIN)/python -m tests.evidence run --force torchscript

evidence: setup $(TORCHAO)  ## regenerate reports and benchmarks older than their code; ONLY="shapes winograd", MINUTES=60; resumes
	@$(BIN)/python -m tests.evidence run $(ONLY) $(if $(MINUTES),--minutes $(MINUTES))

evidence-status:  ## list reports and benchmarks that are older than the code they cover
	@$(BIN)/python -m tests.evidence status

report-torch: setup  ## run the tests on the installed torch, to docs/reports/torch_versions.md
	@$(BIN)/python -m tests.version_report --write docs/reports/torch_versions.md

format: setup  ## format the code and apply the fixes that ruff knows
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove .venv, caches and build output
	@rm -rf $(VENV) build dist runtime/build runtime/dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
