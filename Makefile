# Two commands for everyone: `make demo` and `make test`. `make help` lists the others.
#
# Everything lands in .venv and target. A step that has been done leaves a stamp in .venv and is
# not done again until what it depends on has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(abspath $(VENV))
export CARGO_TERM_COLOR ?= auto
# maturin refuses to choose between two environments.
unexport CONDA_PREFIX

# The models of what is lock-free are a workspace of their own.
IN_LOOM := cd rust/loom && RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=../../target/loom

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_SOURCES := python tests benchmarks tools

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

.PHONY: build
build: $(VENV)/.built ## Build the extension in release mode and install cpkv into .venv

# --- The main job ---

.PHONY: demo
demo: build ## Replay a made-up conversation workload on one tier, then on two
	@$(BIN)/cpkv replay --requests 5000 --device-pages 1000
	@$(BIN)/cpkv replay --requests 5000 --device-pages 1000 --host-pages 4000

# --- Tests and checks ---

.PHONY: test
test: test-rust test-python ## Install what is needed and run every test

.PHONY: test-rust
test-rust: tools ## Run the tests of the core
	@if cargo nextest --version >/dev/null 2>&1; \
	  then cargo nextest run --locked && cargo test --locked --doc; \
	  else cargo test --locked; fi

.PHONY: test-python
test-python: build $(VENV)/.dev-installed ## Run the tests of the package and the command
	$(BIN)/pytest

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
ci: lint test loom ## Everything that a change has to pass

# --- Long runs ---

.PHONY: prove
prove: build $(VENV)/.dev-installed ## Millions of random steps, and the whole model check of backups (half an hour)
	PROPTEST_CASES=1000000 cargo test --locked --release --test against_oracle
	PROPTEST_CASES=1000000 cargo test --locked --release --test random_backups
	CPKV_PROVE_STEPS=1000000 $(BIN)/pytest --timeout=0 tests/property/test_backups.py
	cargo test --locked --release --package cpkv-core --lib operations::model -- --include-ignored --nocapture --test-threads=1

.PHONY: mutants
mutants: tools ## Break the core in small ways and see each break caught (half an hour)
	$(PYTHON) tools/mutants.py

.PHONY: bench
bench: build ## Replay the traces in CPKV_TRACES and write benchmarks/results
	$(BIN)/python benchmarks/replay_table.py

.PHONY: clean
clean: ## Remove everything that was built or installed
	rm -rf $(VENV) target python/cpkv/*.so
