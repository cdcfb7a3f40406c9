#!/bin/sh
# Replaces ssh as OpenMPI's launch agent: agent.sh [OPTIONS] HOST COMMAND... runs COMMAND in the network namespace
# HOST, under that host's name. OpenMPI's daemons name their folders in /tmp after the host.
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host && $*"
