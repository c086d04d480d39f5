# Everything runs in .venv, which is made on first use. Nothing is installed outside this folder.
#   PYTHON=python3.12 make setup    use this interpreter
#   make sim SEEDS=1000             run more seeds
#   make chromium                   install what the browser tests drive (as root)
#   make setup JAVA=install         install also the Java that rsm pipeline runs on (as root)
#   make load FAULTS=1 SHAPE=soak RUN_TIME=30m USERS=40

SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?=
SEEDS ?= 200
JOBS ?= 2
CHROMIUM ?= /usr/bin/chromium
JAVA ?=
FAULTS ?=
SHAPE ?= constant
RUN_TIME ?= 30s
USERS ?= 40

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A virtual environment holds absolute paths. The stamp holds the folder it was made in; when the folder has moved,
# or the interpreter is gone, the environment is made again.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(shell pwd -P))
$(STAMP): remake
endif

.PHONY: help setup demo test check sim load chromium browser java screenshots clean remake

help: ## show this list
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' Makefile

setup: $(STAMP) java ## make .venv and install rsm with its tools into it

demo: $(STAMP) ## run a key-value store here, until Ctrl-C; without a terminal play its story
	$(BIN)/rsm demo

sim: $(STAMP) ## run the simulator over SEEDS seeds
	$(BIN)/rsm sim --seeds $(SEEDS)

load: $(STAMP) ## put a store of its own under load, and judge every answer; FAULTS=1 strikes it meanwhile
	$(BIN)/rsm load --users $(USERS) --run-time $(RUN_TIME) --shape $(SHAPE) $(if $(filter-out 0,$(FAULTS)),--faults)

check: $(STAMP) ## lint, formatting, types, import rules, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_tidy.py

test: $(STAMP) browser java ## run the tests, JOBS at a time
	$(BIN)/pytest -n $(JOBS)

# A machine that tests for others (CI=true) gets a browser if it is root's to give; a person is told how to get one.
browser:
	@if [ -x $(CHROMIUM) ]; then :; \
	elif [ "$(CI)" = true ] && [ "$$(id -u)" = 0 ]; then $(MAKE) chromium; \
	else echo "there is no $(CHROMIUM), so the browser tests are skipped; as root: make chromium"; fi

chromium: ## install Debian's chromium for the browser tests, as root
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium

# Spark needs Java. Whoever has none is told the one line that installs it; it is installed if that was said, or on a
# machine that tests for others.
java: $(STAMP)
	@if $(BIN)/python -m pipeline.java 2>/dev/null; then :; \
	elif [ "$(JAVA)" = install ] || { [ "$(CI)" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; }; then \
	  apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive $$($(BIN)/python -c 'import pipeline.java; print(pipeline.java.INSTALL)'); \
	else $(BIN)/python -m pipeline.java || :; fi

screenshots: $(STAMP) ## make docs/images/dashboard.png anew, in a browser, from a demo under load
	$(BIN)/python -m tests.browser.screenshots docs/images

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist

remake:

# A found command is not enough: it must run (version-manager shims may not) and be new enough.
define find_python
usable() { command -v "$$1" >/dev/null 2>&1 && \
  "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
found=; \
for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
  if usable "$$candidate"; then found="$$candidate"; break; fi; \
done; \
if [ -z "$$found" ]; then \
  echo "rsm needs Python 3.11 or newer; none of these is: $(or $(PYTHON),python3 python3.11 ... python3.14)." >&2; \
  echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
fi; \
if ! "$$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
  echo "$$found has no venv module. On Debian or Ubuntu: apt install python3-venv" >&2; \
  echo "Or name another interpreter: make setup PYTHON=/path/to/python3" >&2; exit 1; \
fi
endef

$(STAMP): pyproject.toml constraints.txt
	@$(find_python); \
	if ! [ -x $(BIN)/python ] || [ "$$(cat $(STAMP) 2>/dev/null)" != "$$(pwd -P)" ]; then \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV) || exit 1; \
	fi
	@rm -f $(STAMP)
	@echo "installing rsm and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@pwd -P > $(STAMP)
