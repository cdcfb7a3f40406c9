#!/bin/sh
# Runs mpirun for tests and the demo: mpirun.sh ARGUMENT_OF_MPIRUN...
# Root may run it, there may be fewer cores than workers, and a waiting worker yields its core.
# Test programs find a file that all of them can map (tests/support/mpi_workers.h).
set -eu
SPARSESYNC_TEST_BOARD=$(mktemp)
export SPARSESYNC_TEST_BOARD
trap 'rm -f "$SPARSESYNC_TEST_BOARD"' EXIT
trap 'exit 143' TERM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# MPI never frees some of its allocations.
LSAN_OPTIONS=${LSAN_OPTIONS:-}:print_suppressions=0:suppressions=$(cd "$(dirname "$0")" && pwd)/lsan_mpi.supp
export LSAN_OPTIONS
mpirun --oversubscribe --mca mpi_yield_when_idle 1 "$@"
