#!/bin/sh
# mpirun as tests need it: mpirun.sh ARGUMENT_OF_MPIRUN...
# Root may run it, there may be fewer cores than workers, and a worker that waits gives its core away.
# Programs of tests find a file that all of them can map (tests/support/mpi_workers.h).
set -eu
SPARSESYNC_TEST_BOARD=$(mktemp)
export SPARSESYNC_TEST_BOARD
trap 'rm -f "$SPARSESYNC_TEST_BOARD"' EXIT
trap 'exit 143' TERM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# MPI leaves much behind that it never frees, from code that is unloaded by then: leaks are looked for without it.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
mpirun --oversubscribe --mca mpi_yield_when_idle 1 "$@"
