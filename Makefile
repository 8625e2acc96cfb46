# make report   measure this machine's GPU, or replay data/h200 without one, and build the HTML site
# make test     every check and test
# make check    style, types, and the tests that bear on what changed since the last commit (SINCE=main: since main)
# make lab      JupyterLab, opened on docs/lessons.md, whose table links to the notebooks
#
# PYTHON=path uses a ready environment as it is; else .venv is made with BASE (python3).

PYTHON ?=
BASE ?= $(or $(PYTHON),python3)
PY := $(or $(PYTHON),.venv/bin/python)
export PYTHONPATH := $(CURDIR)/lib$(if $(PYTHONPATH),:$(PYTHONPATH))
export PYTHONHASHSEED := 0
# Some containers set it; then every process would compile all that it imports anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE
ROOT := $(filter 0,$(shell id -u 2>/dev/null))
LAB := --LabApp.default_url=/lab/tree/docs/lessons.md "--LabApp.app_settings_dir=$(CURDIR)/scripts/jupyterlab"
CHECKED := lib tests notebooks scripts

.PHONY: report test check style lab clean
.DEFAULT_GOAL := report

report:
	@"$(BASE)" scripts/setup.py auto "$(PYTHON)"
	@"$(PY)" -m rooflab report

style:
	@"$(BASE)" scripts/setup.py test "$(PYTHON)"
	@"$(PY)" -m ruff check --quiet --cache-dir build/.ruff_cache $(CHECKED)
	@"$(PY)" -m ruff format --quiet --check --cache-dir build/.ruff_cache $(CHECKED)
	@"$(PY)" -m mypy

check: style
	@"$(PY)" scripts/check.py $(SINCE)

# A process a core and one more (tests/conftest.py), so NumPy has one thread in each.
test: export OPENBLAS_NUM_THREADS := 1

# Files in the order named: style and types, then the notebooks, many and short, come last, so that no process
# ends alone.
test:
	@"$(BASE)" scripts/setup.py test "$(PYTHON)"
	@"$(PY)" -m pytest -n auto --dist loadfile --no-loadscope-reorder --nbval --nbval-current-env --nbval-cell-timeout 600 --durations 25 tests notebooks

lab:
	@"$(BASE)" scripts/setup.py lab "$(PYTHON)"
	@$(if $(ROOT),echo "JupyterLab refuses root unless told: as you are root it gets --allow-root.")
	@"$(PY)" -m jupyterlab $(LAB) $(if $(ROOT),--allow-root)

clean:
	rm -rf build
