// The whole public interface of sparsesync.
#pragma once

// IWYU pragma: begin_exports
#include "sparsesync/all_reduce.h"
#include "sparsesync/bucket.h"
#include "sparsesync/context.h"
#include "sparsesync/device.h"
#include "sparsesync/device_stream.h"
#include "sparsesync/dtype.h"
#include "sparsesync/errors.h"
#include "sparsesync/gradient.h"
#include "sparsesync/matrix.h"
#include "sparsesync/memory.h"
#include "sparsesync/network.h"
#include "sparsesync/network_file.h"
#include "sparsesync/rank.h"
#include "sparsesync/result.h"
#include "sparsesync/schedule.h"
#include "sparsesync/schemes.h"
#include "sparsesync/session.h"
#include "sparsesync/sparsifier.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/local.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/nccl.h"
#include "sparsesync/transports/process_group.h"
// IWYU pragma: end_exports
