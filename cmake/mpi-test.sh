#!/bin/sh
# Runs a program of tests as several processes: mpi-test.sh WORKERS PROGRAM [ARGUMENT...]
set -eu
workers=$1
shift
SPARSESYNC_TEST_BOARD=$(mktemp)
export SPARSESYNC_TEST_BOARD
trap 'rm -f "$SPARSESYNC_TEST_BOARD"' EXIT
# Root may run it, there may be fewer cores than workers, and a worker that waits gives its core away.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
  mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np "$workers" "$@"
