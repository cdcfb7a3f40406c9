// Combines several jobs into one launch. Each job is divided into tiles; a block or a thread
// processes one tile. For kernel sources only.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/base/views.h"

namespace sparsesync::cuda {

/// Jobs per launch, limited because kernel parameters hold their descriptions.
inline constexpr int kJobs = 16;

/// Table of the jobs of a launch, passed as a kernel parameter.
/// @tparam Work  description of a job for the kernel; add() sets its `first_tile`
template <typename Work>
class JobTable {
 public:
  bool is_full() const { return count_ == kJobs; }
  __host__ __device__ Index tiles() const { return tiles_; }

  /// @pre !is_full()
  void add(const Work& work, Index tiles) {
    works_[count_] = work;
    works_[count_].first_tile = tiles_;
    tiles_ += tiles;
    ends_[count_] = tiles_;
    ++count_;
  }

  /// Returns the table index of the job that a tile belongs to. The tile must exist.
  __device__ int number_of(Index tile) const {
    int job = 0;
    while (ends_[job] <= tile) ++job;
    return job;
  }
  /// Returns the job with a table index.
  __device__ const Work& work(int number) const { return works_[number]; }
  /// Returns the job that a tile belongs to.
  __device__ const Work& of(Index tile) const { return works_[number_of(tile)]; }

 private:
  Work works_[kJobs];
  Index ends_[kJobs];
  Index tiles_ = 0;
  int count_ = 0;
};

/// Calls `run(table)` for the jobs that have tiles, with as many jobs per table as it holds.
/// @param add_to  add_to(table, job): adds the job if it has tiles
template <typename Work, typename Job, typename AddTo, typename Run>
void for_tables(std::span<const Job> jobs, AddTo&& add_to, Run&& run) {
  JobTable<Work> table{};  // zeroed: unused entries are part of the kernel's parameters, too
  for (const Job& job : jobs) {
    add_to(table, job);
    if (!table.is_full()) continue;
    run(table);
    table = {};
  }
  if (table.tiles() > 0) run(table);
}

}  // namespace sparsesync::cuda
