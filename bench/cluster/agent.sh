#!/bin/sh
# OpenMPI's launch agent in place of ssh: agent.sh [OPTIONS] HOST COMMAND... runs COMMAND in the network namespace HOST,
# under that host's name: by the name daemons tell their folders in /tmp apart.
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host && $*"
