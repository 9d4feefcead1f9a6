# Two commands for a newcomer: `make demo` shows what dg-lsp does, `make test` shows that it works.
# Both need Python 3.11 or later and pip, and make their own environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
ENV := $(VENV)/.made
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
RELEASE := $(VENV)/.installed-release
# A process for each core; one that has no tests left takes some of another.
TESTS := $(BIN)/python -m pytest --numprocesses auto --dist worksteal --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check style clean settings vscode test-editors lock release

help:
	@echo "make demo    pull a laptop model (0.5 GB, once), fill the holes of fixtures/demo and show the diff"
	@echo "make test    install what the tests need, check style and types, run the tests but the slowest and most of those that start processes"
	@echo "make test-all  the same with all tests, and their coverage"
	@echo "make check   what make test does, without installing"
	@echo "make settings  write the settings into the documentation and the VS Code extension"
	@echo "make vscode  package the VS Code extension (needs Node 20)"
	@echo "make lock    pin what the VS Code extension installs beside dg-lsp, by hash"
	@echo "make release   build all that is published into dist/, twice, and try it"
	@echo "make test-editors   install real editors below build/ and test their clients in them"
	@echo "make clean   remove what these commands made"

# The model is downloaded once, into the user's data folder. Without a network, or with DG_LSP_NO_PULL, the embedded one fills.
demo: $(RUN)
	@echo "dg-lsp engine pull auto"
	@$(BIN)/dg-lsp engine pull auto || [ $$? -eq 2 ]
	@echo "dg-lsp infill --all fixtures/demo"
	@# Exit status 1 says that holes stay open, which the small model leaves.
	@$(BIN)/dg-lsp infill --all fixtures/demo || [ $$? -eq 1 ]

test: $(DEV)
	@$(MAKE) --no-print-directory check

# All tests, with more examples, and how much of the core they reach.
test-all: $(DEV)
	@$(MAKE) --no-print-directory style
	$(TESTS) --hypothesis-profile many --cov=dg_lsp --cov-report=
	$(BIN)/coverage report --include='dg_lsp/core/*' --fail-under=95 --skip-covered

# Style beside the tests, with its output behind theirs.
check:
	@$(MAKE) --no-print-directory style >$(VENV)/style.log 2>&1 & style=$$!; \
	$(TESTS) -m "not slow and (smoke or not e2e)"; tests=$$?; \
	wait $$style; style=$$?; cat $(VENV)/style.log; exit $$((tests > style ? tests : style))

style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The editors' clients. What is installed for them stays below build/editors; only where this is root, and they are not there,
# are Chromium, Emacs, tmux, luacheck and npm installed with apt-get. Where a test fails it says where the editor's last picture
# or screen is: below build/editor-pictures.
EDITORS := build/editors

# Builds of one commit are the same bytes: what would be the time of building is that of the commit.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)

.PHONY: wheel
wheel: $(RELEASE)
	rm -f editors/vscode/server/*.whl
	$(BIN)/python -m build --no-isolation --wheel --outdir editors/vscode/server . >/dev/null

lock: $(RELEASE)
	$(BIN)/uv pip compile pyproject.toml --quiet --extra engine --universal --python-version 3.11 --constraint constraints.txt \
	  --generate-hashes --no-header --no-annotate --output-file editors/vscode/server/requirements.txt

release: $(RELEASE)
	packaging/release.sh $(BIN)

settings: $(RUN)
	$(BIN)/python -m tests.pages.settings --write
	$(BIN)/python -m tests.pages.gpus --write

vscode: wheel
	node=$$(tests/editors/install/node.sh $(EDITORS)) && PATH="$$node:$$PATH" && cd editors/vscode && \
	  npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=5 && npm run package

test-editors: $(DEV) vscode
	$(PIP) install --constraint constraints.txt --group editors
	tests/editors/install/tools.sh $(EDITORS)
	tests/editors/install/neovim.sh $(EDITORS)
	tests/editors/install/vscode.sh $(EDITORS)
	tests/editors/install/emacs.sh $(EDITORS)
	tests/editors/install/helix.sh $(EDITORS)
	$(BIN)/python -m pytest tests/editors --quiet

clean:
	rm -rf $(VENV) build dist .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(ENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dg-lsp needs Python 3.11 or later; set PYTHON, as in: make demo PYTHON=python3.12")'
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1.
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# Linux without an NVIDIA GPU has no use for CUDA. Where PyTorch's index can't be reached, pip takes what its own index has.
CUDA_USE := $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg)
CPU_INDEX := $(if $(CUDA_USE),,$(if $(filter Linux,$(shell uname)),--retries 1 --extra-index-url https://download.pytorch.org/whl/cpu))

# Torch first and by itself: nothing else then asks for another build.
$(RUN): $(ENV) pyproject.toml constraints.txt
	@echo "installing dg-lsp and its engine"
	@$(PIP) install --constraint constraints.txt $(CPU_INDEX) torch
	@$(PIP) install --constraint constraints.txt --editable '.[engine]'
	@touch $@

$(RELEASE): $(ENV) pyproject.toml
	@$(PIP) install --group release
	@touch $@

$(DEV): $(RUN)
	@echo "installing what the tests need"
	@$(PIP) install --constraint constraints.txt --group dev
	@touch $@
