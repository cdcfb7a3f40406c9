// All that a program needs: buckets, sessions, and what connects the workers. What this header
// includes is what is installed, as <sparsesync/...>; <sparsesync/sparsesync.h> is this one.
#pragma once

#include "engine/memory/memory.h"
#include "engine/session/session.h"
#include "engine/transport/local.h"
#include "engine/transport/mpi.h"
#include "schemes/bucket.h"
#include "schemes/registry.h"
