#!/bin/bash
# ./t PROGRAM ARGS: runs a program of the venv on this copy's code
cd "$(dirname "$0")"
export PYTEST_DEBUG_TEMPROOT=/tmp/pt-mach2
export PYTHONPATH="$PWD/src:$PWD"
exec nice -n 5 scripts/run.sh "$@"
