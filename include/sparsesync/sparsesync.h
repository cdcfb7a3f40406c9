// All that a program needs: buckets, sessions, and what connects the workers. What this header
// includes is what is installed, as <sparsesync/...>; <sparsesync/sparsesync.h> is this one.
#pragma once

#include "sparsesync/memory.h"
#include "sparsesync/session.h"
#include "sparsesync/transports/local.h"
#include "sparsesync/transports/mpi.h"
#include "schemes/bucket.h"
#include "schemes/registry.h"
