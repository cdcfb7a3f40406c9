/// @file
/// Includes the whole public interface of sparsesync.
///
/// Conventions of all headers, unless a comment states otherwise:
/// - Functions do not synchronize the stream.
/// - Views (`std::span`, Matrix, Gradient, Context and results) do not own memory. The caller keeps
///   the memory alive and unchanged as long as the comment says.
/// - One thread at a time uses an object. Different objects are independent.
/// - Names with `bytes` are sizes in bytes, `_s` are seconds, and `_bps` are bits per second.
/// - Errors are the classes of errors.h.
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
#include "sparsesync/rendezvous.h"
#include "sparsesync/result.h"
#include "sparsesync/schedule.h"
#include "sparsesync/schemes.h"
#include "sparsesync/session.h"
#include "sparsesync/sparsifier.h"
#include "sparsesync/transport.h"
#include "sparsesync/transports/chunks.h"
#include "sparsesync/transports/local.h"
#include "sparsesync/transports/mpi.h"
#include "sparsesync/transports/nccl.h"
#include "sparsesync/transports/process_group.h"
#include "sparsesync/transports/ucx.h"
// IWYU pragma: end_exports
