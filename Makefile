# The two commands a newcomer needs are `make demo` and `make test`; `make help` lists the rest.
.PHONY: help setup demo test lint types accuracy wheel clean
.DEFAULT_GOAL := help

help:            ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup:           ## make .venv and install into it (done by the others when needed)
	@bash scripts/setup.sh

demo: setup      ## plan, train, merge and query a real 135M model on this machine
	@.venv/bin/llmsys train experiment=quickstart

test: setup      ## run the tests
	@.venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: setup      ## style
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

types: setup     ## strict types on the planner
	@.venv/bin/basedpyright

accuracy: setup  ## forecasts against measured memory
	@.venv/bin/python benchmarks/accuracy.py

wheel: setup     ## build dist/*.whl
	@.venv/bin/python -m build --wheel

clean:           ## remove the environment and caches; run folders stay
	@rm -rf .venv .cache dist build .setup.lock
