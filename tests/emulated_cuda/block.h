// Runs one block of a grid.
#pragma once

#include <atomic>
#include <functional>

#include "cuda_runtime.h"

namespace sparsesync::emulated_cuda {

/// Calls `body` as every thread of a block, in the calling OS thread.
/// @param first      position of the block's first thread
/// @param backwards  whether the last thread of the block runs first
/// @param unended    number of blocks of the grid that have not ended, including this one
void run_block(const Position& first, const std::function<void()>& body, bool backwards,
               const std::atomic<unsigned>& unended);

}  // namespace sparsesync::emulated_cuda
