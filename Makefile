# Bootstrap from nothing but python3: uv and nox go into .venv-tools, everything else is a nox session.
PYTHON ?= python3
NOX := .venv-tools/bin/nox

.PHONY: demo test check tools

# make demo ARGS="--seed 1"
demo: $(NOX)
	$(NOX) -s demo $(if $(ARGS),-- $(ARGS))

test: $(NOX)
	$(NOX) -s tests

check: $(NOX)
	$(NOX) -s lint types build docs isolated

tools: $(NOX)

$(NOX):
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet -c constraints/dev.txt nox uv
