# Penstock's commands. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo newcomer test test-mysql bench chaos lint proto docs sbom hashes audit wheel-test fresh release

RUN := scripts/run.sh
NAME ?= feed
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## Install what the demo and a server need (Python, Java, packages) into this clone; quick when nothing is missing
	@scripts/setup.sh run

setup-test: ## Install besides what tests and benchmarks need: databases (no service is enabled), npm, a browser, tools
	@scripts/setup.sh test

demo: ## Set up, then carry a live workload to files and verify every row; ARGS="--seconds 20 --keep"
	@scripts/setup.sh run $(ARGS)
	@$(RUN) penstock demo $(ARGS)

newcomer: setup-test ## Type the demo and every command of the tutorial into tmux, at two widths; ARGS="80"
	@scripts/newcomer.sh $(ARGS)

test: setup-test ## Set up, lint, then run every test but the chaos ones; ARGS="tests/unit -k span"
ifeq ($(ARGS),)
	@scripts/test.sh
else
	@$(MAKE) --no-print-directory lint
	@$(RUN) python -m pytest -q -m "not chaos and not mysql" $(ARGS)
endif

test-mysql: setup-test ## Lay MySQL into a cache folder, then run the tests that want it beside MariaDB's
	@PENSTOCK_MYSQL_ROOT="$$(scripts/mysql_root.sh)" $(RUN) python -m pytest -q -m mysql $(ARGS)

bench: setup-test ## Run a benchmark; NAME=feed ARGS=--quick
	@$(RUN) python -m benchmarks $(NAME) --json $(ARGS)

chaos: setup-test ## Run the slow tests that kill processes
	@$(RUN) python -m pytest -q -m chaos $(ARGS)

lint: setup-test ## Check style, formatting, types and layers
	@$(RUN) ruff check src tests testing scripts benchmarks
	@$(RUN) ruff format --check src tests testing scripts benchmarks
	@$(RUN) mypy
	@$(RUN) lint-imports

proto: setup-test ## Generate the gRPC modules from the .proto files
	@$(RUN) python -m pip install -q -c constraints.txt grpcio-tools
	@$(RUN) python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/penstock/source/proto/*.proto

docs: setup-test ## Generate what is generated of docs/, then build the site into build/site, with every link checked
	@$(RUN) python scripts/errors_doc.py
	@$(RUN) python scripts/benchmarks_doc.py
	@$(RUN) python scripts/tests_doc.py
	@$(RUN) python scripts/reference_doc.py
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet --strict

sbom: setup-test ## Write what an installation holds, as CycloneDX, to build/sbom.cdx.json
	@$(RUN) python scripts/sbom.py

hashes: setup-test ## Write constraints-hashes.txt: the digests of all files of the pinned packages, as the registry gives them
	@$(RUN) python scripts/hashes.py $(ARGS)

audit: setup-test ## Ask osv.dev whether pinned packages have known vulnerabilities; says so where there is no network
	@$(RUN) python scripts/audit.py $(ARGS)

wheel-test: setup-test ## Build the wheel, check what it holds, install it outside the clone and run the demo there
	@scripts/wheel_test.sh

fresh: ## Prove on bare systems (debootstrap, root) that the demo needs nothing but make and git; ARGS="trixie"
	@scripts/fresh.sh $(ARGS)

release: setup-test ## Check that HEAD may be released, build and try the wheel, sign it off in dist/; ARGS=--check only asks
	@$(RUN) python scripts/release.py --check
ifneq ($(ARGS),--check)
	@$(MAKE) --no-print-directory lint
	@$(RUN) python scripts/release.py $(ARGS)
endif
