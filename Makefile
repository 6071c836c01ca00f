# Penstock's commands. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-mysql bench chaos lint proto docs sbom hashes audit

RUN := scripts/run.sh
NAME ?= feed
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## Install what is missing (Python, Java, packages) into this clone; quick when nothing is
	@scripts/setup.sh

demo: setup ## Set up, then carry a live workload to files and verify every row; ARGS="--seconds 20 --keep"
	@$(RUN) penstock demo $(ARGS)

test: setup lint ## Set up, lint, then run every test but the chaos ones; ARGS="tests/unit -k span"
ifeq ($(ARGS),)
	@$(RUN) python -m pytest -q -m "not chaos" tests/spark
	@$(RUN) python -m pytest -q -n 4 --dist worksteal -m "not chaos and not mysql" --ignore=tests/spark
else
	@$(RUN) python -m pytest -q -m "not chaos and not mysql" $(ARGS)
endif

test-mysql: setup ## Lay MySQL into a cache folder, then run the tests that want it beside MariaDB's
	@PENSTOCK_MYSQL_ROOT="$$(scripts/mysql_root.sh)" $(RUN) python -m pytest -q -m mysql $(ARGS)

bench: setup ## Run a benchmark; NAME=feed ARGS=--quick
	@$(RUN) python -m benchmarks $(NAME) --json $(ARGS)

chaos: setup ## Run the slow tests that kill processes
	@$(RUN) python -m pytest -q -m chaos $(ARGS)

lint: setup ## Check style, formatting, types and layers
	@$(RUN) ruff check src tests testing scripts benchmarks
	@$(RUN) ruff format --check src tests testing scripts benchmarks
	@$(RUN) mypy
	@$(RUN) lint-imports

proto: setup ## Generate the gRPC modules from the .proto files
	@$(RUN) python -m pip install -q -c constraints.txt grpcio-tools
	@$(RUN) python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/penstock/source/proto/*.proto

docs: setup ## Generate docs/errors.md from the code table, docs/benchmarks.md from the runs on record, docs/internals/tests.md from the imports
	@$(RUN) python scripts/errors_doc.py
	@$(RUN) python scripts/benchmarks_doc.py
	@$(RUN) python scripts/tests_doc.py

sbom: setup ## Write what an installation holds, as CycloneDX, to build/sbom.cdx.json
	@$(RUN) python scripts/sbom.py

hashes: setup ## Write constraints-hashes.txt: the digests of all files of the pinned packages, as the registry gives them
	@$(RUN) python scripts/hashes.py $(ARGS)

audit: setup ## Ask osv.dev whether pinned packages have known vulnerabilities; says so where there is no network
	@$(RUN) python scripts/audit.py $(ARGS)
