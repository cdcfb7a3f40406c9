// Jobs of one launch, each cut into tiles: a block, or a thread, carries out a tile of one of them.
// For kernel sources only.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/base/views.h"

namespace sparsesync::cuda {

/// How many go into one launch: a kernel's parameters hold their descriptions.
inline constexpr int kJobs = 16;

/// A kernel's parameter.
/// @tparam Work  what a kernel knows of a job; its `first_tile` is set by add()
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

  /// The job of a tile, which there is: its number in the table.
  __device__ int number_of(Index tile) const {
    int job = 0;
    while (ends_[job] <= tile) ++job;
    return job;
  }
  /// The job of a number.
  __device__ const Work& work(int number) const { return works_[number]; }
  /// The job of a tile.
  __device__ const Work& of(Index tile) const { return works_[number_of(tile)]; }

 private:
  Work works_[kJobs];
  Index ends_[kJobs];
  Index tiles_ = 0;
  int count_ = 0;
};

/// Launches `run(table)` for the jobs that have tiles, with as many in a table as it holds.
/// @param add_to  add_to(table, job): adds the job if it has tiles
template <typename Work, typename Job, typename AddTo, typename Run>
void for_tables(std::span<const Job> jobs, AddTo&& add_to, Run&& run) {
  JobTable<Work> table{};  // what is unused of it is a parameter, too
  for (const Job& job : jobs) {
    add_to(table, job);
    if (!table.is_full()) continue;
    run(table);
    table = {};
  }
  if (table.tiles() > 0) run(table);
}

}  // namespace sparsesync::cuda
