# Two commands: `make demo` shows tamis at work, `make test` runs every check but the slow ones (.ci/run adds those).
# `make test ONLY=quantization` runs the tests of one package, tests/quantization.
# Each first installs what it needs into .venv, and again whenever the dependencies or the C++ change.

PYTHON ?= python3
SHELL := bash
INSTALLED := .venv/.installed
NATIVE := CMakeLists.txt $(wildcard src/tamis/kernels/cpu/*.cpp src/tamis/kernels/cpu/*.h)

.PHONY: demo test docs clean

demo: $(INSTALLED)
	@.venv/bin/tamis demo

ifdef ONLY
test: $(INSTALLED)
	.venv/bin/pytest tests/$(ONLY)
else
test: $(INSTALLED)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	@# Side by side, since mypy keeps one core busy only; if either fails, so does this.
	.venv/bin/mypy & types=$$!; .venv/bin/pytest; tests=$$?; wait $$types && exit $$tests
endif

docs: $(INSTALLED)
	.venv/bin/sphinx-build -q -W --keep-going -b html docs out/docs

clean:
	rm -rf .venv build dist out

# The versions in constraints.txt hold for the isolated build too, which takes them from PIP_CONSTRAINT (before pip 25.3)
# or PIP_BUILD_CONSTRAINT. awk keeps one line of pip's progress per package; errors go to stderr, untouched.
$(INSTALLED): pyproject.toml constraints.txt $(NATIVE)
	@test -x .venv/bin/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "tamis needs Python 3.11 or newer, and $(PYTHON) is not: name another one with make PYTHON=..." >&2; exit 1; }
	@for cxx in $${CXX:-c++ g++ clang++}; do command -v $$cxx >/dev/null && exit 0; done; \
	  echo "tamis needs a C++ compiler ($${CXX:-c++, g++ or clang++}): install one, or name it with make CXX=..." >&2; exit 1
	@test -x .venv/bin/python || { echo "Creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing tamis into .venv (a few minutes the first time)"
	@set -o pipefail; \
	  PIP_CONSTRAINT="constraints.txt $$PIP_CONSTRAINT" PIP_BUILD_CONSTRAINT="constraints.txt $$PIP_BUILD_CONSTRAINT" \
	  .venv/bin/python -m pip install -c constraints.txt -e ".[dev]" \
	  | awk '/^(Collecting|Processing) / { sub(/.*\//, "", $$2); print "  " $$2; fflush() } \
	         /Building editable .*started/ { print "  compiling the native kernels"; fflush() } \
	         /^Installing collected packages/ { print "  installing all of these"; fflush() }'
	@touch $@
