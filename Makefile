# Two commands for everyone: `make demo` and `make test`. `make help` lists the others.
#
# Everything lands in .venv, .venv-torch and target. A step that has been done leaves a stamp there and is
# not done again until what it depends on has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What needs torch is tested in an environment of its own, which is 2 GB.
TORCH_VENV := .venv-torch
WHEELS := target/wheels
export VIRTUAL_ENV := $(abspath $(VENV))
export CARGO_TERM_COLOR ?= auto
# maturin refuses to choose between two environments.
unexport CONDA_PREFIX

# The models of what is lock-free are a workspace of their own.
IN_LOOM := cd rust/loom && RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=../../target/loom

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_SOURCES := python tests benchmarks tools
PACKAGE_SOURCES := $(shell find python -name '*.py' -o -name '*.pyi')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- Tools and environment ---

.PHONY: tools
tools:
	@command -v cargo >/dev/null || \
	  { echo "cpkv: cargo is missing: install Rust 1.88 or newer, see https://rustup.rs" >&2; exit 1; }
	@cargo --version | awk '{ split($$2, v, "."); exit !(v[1] > 1 || v[2] >= 88) }' || \
	  { echo "cpkv: $$(cargo --version) is too old: want 1.88 or newer, try rustup update" >&2; exit 1; }
	@command -v cc >/dev/null || \
	  { echo "cpkv: cc is missing: install a C compiler, which Rust links with" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || \
	  { echo "cpkv: $(PYTHON) is missing: install CPython 3.11 or newer, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c '' 2>/dev/null || \
	  { echo "cpkv: $(PYTHON) does not run: install CPython 3.11 or newer, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cpkv: $$($(PYTHON) --version 2>&1) is too old: want 3.11 or newer, name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "cpkv: $(PYTHON) has no venv module: install it (on Debian: python3-venv)" >&2; exit 1; }

$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-installed: requirements/run.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/.dev-installed: requirements/dev.txt requirements/run.txt | $(VENV)/.run-installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(VENV)/.built: $(RUST_SOURCES) pyproject.toml | tools $(VENV)/.run-installed
	PIP_QUIET=1 $(BIN)/maturin develop --release
	@touch $@

$(TORCH_VENV)/.installed: requirements/torch.txt requirements/run.txt tools/torch_environment.sh tools/stand_in_cuda.py | tools
	PYTHON="$(PYTHON)" tools/torch_environment.sh $(TORCH_VENV)
	@touch $@

$(TORCH_VENV)/.sglang-installed: requirements/sglang.txt tools/sglang_environment.sh $(TORCH_VENV)/.installed
	tools/sglang_environment.sh $(TORCH_VENV)
	@touch $@

# As users install it: SGLang finds cpkv through an entry point, which a folder on the path does not have.
$(TORCH_VENV)/.cpkv-installed: $(VENV)/.built $(PACKAGE_SOURCES) $(TORCH_VENV)/.sglang-installed
	rm -rf $(WHEELS)
	$(BIN)/maturin build --quiet --release --out $(WHEELS)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@

.PHONY: build
build: $(VENV)/.built ## Build the extension in release mode and install cpkv into .venv

# --- The main job ---

.PHONY: demo
demo: build ## Serve a small model on four ranks, cold, hot, restored and aborted, and compare (installs torch)
	@PYTHON="$(PYTHON)" tools/demo.sh

.PHONY: sglang-demo
sglang-demo: $(TORCH_VENV)/.cpkv-installed ## Serve a tiny model by SGLang on the CPU and see host hits (installs torch and SGLang)
	@$(TORCH_VENV)/bin/python tests/with_sglang/demo.py

.PHONY: replay
replay: build ## Replay a made-up conversation workload on one tier, then on two
	@$(BIN)/cpkv replay --requests 5000 --device-pages 1000
	@$(BIN)/cpkv replay --requests 5000 --device-pages 1000 --host-pages 4000

# --- Tests and checks ---

# The models of what is lock-free are explored whole in some three seconds.
.PHONY: test
test: test-rust loom test-python test-torch test-sglang ## Install what is needed and run every test

.PHONY: test-rust
test-rust: tools ## Run the tests of the core
	@if cargo nextest --version >/dev/null 2>&1; \
	  then cargo nextest run --locked && cargo test --locked --doc; \
	  else cargo test --locked; fi

.PHONY: test-python
test-python: build $(VENV)/.dev-installed ## Run the tests of the package and the command
	$(BIN)/pytest

.PHONY: test-torch
test-torch: build $(TORCH_VENV)/.installed ## Run the tests of what needs torch: the kernels, on the CPU
	TRITON_INTERPRET=1 PYTHONPATH=python $(TORCH_VENV)/bin/python -m pytest tests/with_torch tests/gpu

.PHONY: test-sglang
test-sglang: $(TORCH_VENV)/.cpkv-installed ## Run the tests of cpkv in SGLang: its engine, on the CPU
	$(TORCH_VENV)/bin/python -m pytest -m "not slow" tests/with_sglang

.PHONY: test-sglang-all
test-sglang-all: $(TORCH_VENV)/.cpkv-installed ## Also those that are like others, with other page sizes and ranks
	$(TORCH_VENV)/bin/python -m pytest tests/with_sglang

.PHONY: test-sglang-versions
test-sglang-versions: $(TORCH_VENV)/.cpkv-installed ## Run tests in the engines of all versions of SGLang that there is an adapter for, or VERSIONS="0.5.20 0.5.21"
	$(TORCH_VENV)/bin/python tools/sglang_versions.py $(VERSIONS)

.PHONY: loom
loom: tools ## Explore the models of what is lock-free, with their negative controls
	$(IN_LOOM) cargo test --locked --release

.PHONY: format
format: tools $(VENV)/.dev-installed ## Format everything
	cargo fmt --all
	cd rust/loom && cargo fmt
	$(BIN)/ruff format $(PYTHON_SOURCES)

.PHONY: lint
lint: build $(VENV)/.dev-installed ## Formatting, clippy, ruff, mypy, and the stub against the module
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cd rust/loom && cargo fmt --check
	$(IN_LOOM) cargo clippy --locked --all-targets -- -D warnings
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cpkv._core --allowlist tests/stubtest_allowlist.txt --ignore-unused-allowlist

.PHONY: ci
ci: lint test ## Everything that a change has to pass

# --- Long runs ---

# In twenty parts: Hypothesis remembers what it has tried, which would be some ten gigabytes in the end.
PROVE_SEEDS := $(shell seq 20)
PROVE_RANDOM := tests/property/test_backups.py tests/property/test_bytes.py

# Four ranks as threads, as processes, and with one of them killed: 100 runs of 300 steps of each kind, 150 deaths;
# and a soak of 3,000 rounds.
PROVE_RUNS := tests/integration/test_replicas.py tests/property/test_draft_stamps.py
PROVE_RUN_STEPS := 30000

# How many of the parts run at once: each takes a core, and the largest models some gigabytes.
PROVE_JOBS ?= 1

.PHONY: prove
prove: build $(VENV)/.dev-installed ## Millions of random steps, and the whole model check of backups (two hours or so)
	PROPTEST_CASES=1000000 cargo test --locked --release --test against_oracle
	PROPTEST_CASES=1000000 cargo test --locked --release --test random_backups
	printf '%s\n' $(PROVE_SEEDS) | xargs -P $(PROVE_JOBS) -I '{}' sh -c \
	  'CPKV_PROVE_STEPS=50000 HYPOTHESIS_STORAGE_DIRECTORY=target/hypothesis/{} \
	  $(BIN)/pytest -q --timeout=0 --hypothesis-seed={} $(PROVE_RANDOM) || exit 255'
	CPKV_PROVE_STEPS=$(PROVE_RUN_STEPS) $(BIN)/pytest -q $(PROVE_RUNS)
	$(IN_LOOM) cargo test --locked --release
	cargo test --locked --release --package cpkv-core --lib operations::model -- --include-ignored --nocapture --test-threads=$(PROVE_JOBS)

.PHONY: mutants
mutants: build $(VENV)/.dev-installed $(TORCH_VENV)/.cpkv-installed ## Break the core, the data plane and the SGLang part in small ways and see each break caught (an hour or two)
	@cargo nextest --version >/dev/null || { echo "cpkv: cargo-nextest is missing: cargo install cargo-nextest" >&2; exit 1; }
	$(BIN)/python tools/mutants.py

.PHONY: bench
bench: build ## Replay the traces in CPKV_TRACES and write benchmarks/results
	$(BIN)/python benchmarks/replay_table.py

.PHONY: clean
clean: ## Remove everything that was built or installed
	rm -rf $(VENV) $(TORCH_VENV) .venv-demo target python/cpkv/*.so
