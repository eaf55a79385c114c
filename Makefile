# Two commands matter: `make demo` shows PPO learning, `make test` proves the rest.
# Each makes its own virtual environment in .venv and needs nothing but Python 3.11, make and gcc.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test thorough check format install bench clean

demo: $(VENV)/.core
	$(BIN)/sherd train ppo CartPole-v1 --steps 200000 --seed 1 --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

# Tests start hundreds of processes. Where PYTHONDONTWRITEBYTECODE is set each of them would compile Sherd anew.
# The tests of the architecture have run by then, with the other checks.
test: check
	$(BIN)/python -m compileall -q sherd tests/support
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --ignore tests/test_architecture.py

# Every test, also those that `make test` leaves out to stay short, such as most of the conformance matrix.
thorough: $(STAMP)
	SHERD_THOROUGH=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

check: $(STAMP)
	$(BIN)/ruff format --check sherd tests benchmarks
	$(BIN)/ruff check sherd tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_architecture.py

format: $(STAMP)
	$(BIN)/ruff format sherd tests benchmarks
	$(BIN)/ruff check --fix sherd tests benchmarks

# Sherd beside other libraries, each in an environment of its own under .bench; an hour or more.
bench: $(STAMP)
	$(BIN)/python benchmarks/compare.py

install: $(STAMP)

# The demo needs only the core; everything else is installed when it is asked for.
$(VENV)/.core: pyproject.toml
	@echo "Sherd: installing into $(VENV), about a minute the first time"
	@$(PYTHON) -c 'import sys; sys.exit("Sherd needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(STAMP): $(VENV)/.core
	@echo "Sherd: installing all extras and what the tests need, some minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,atari,mujoco,envpool,minatar,graph-envs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
