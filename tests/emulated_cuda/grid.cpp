// Runs the blocks of a grid, several at a time, in the calling thread and in helper threads.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "cuda_runtime.h"
#include "kernels/base/threads.h"
#include "tests/emulated_cuda/block.h"
#include "tests/emulated_cuda/controls.h"

namespace sparsesync::emulated_cuda {
namespace {

/// The blocks of one launch. Several OS threads claim them one after another.
class Grid {
 public:
  Grid(dim3 size, dim3 block_size, const std::function<void()>& thread, bool backwards)
      : size_(size),
        block_size_(block_size),
        thread_(thread),
        backwards_(backwards),
        unended_(size.x) {}

  unsigned blocks() const { return size_.x; }

  /// Runs blocks in the calling OS thread until none is left.
  void run_blocks() {
    const DefaultFloatEnvironment floats;  // the host's environment does not apply to a GPU
    while (true) {
      // Relaxed, so that ThreadSanitizer does not treat blocks as ordered.
      const unsigned begun = begun_.fetch_add(1, std::memory_order_relaxed);
      if (begun >= size_.x) return;
      const unsigned number = backwards_ ? size_.x - 1 - begun : begun;
      run_block({{}, dim3(number), block_size_, size_}, thread_, number % 2 == 1, unended_);
      unended_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

 private:
  dim3 size_;
  dim3 block_size_;
  const std::function<void()>& thread_;
  bool backwards_;
  std::atomic<unsigned> begun_ = 0;
  std::atomic<unsigned> unended_;
};

/// OS threads that run blocks in addition to the launching thread.
class Helpers {
 public:
  /// Never destroyed, because its threads wait for grids until the process ends.
  static Helpers& the() {
    static auto* const helpers = new Helpers;
    return *helpers;
  }

  /// Returns when all blocks have ended.
  void run(Grid& grid) {
    // A child process of fork() has no helpers.
    if (getpid() != process_) return grid.run_blocks();
    {
      const std::lock_guard lock(mutex_);
      grid_ = &grid;
      wanted_ = std::min(grid.blocks() - 1, kProcessors - 1);
      for (unsigned i = 0; i < wanted_; ++i) wake_.notify_one();
    }
    grid.run_blocks();
    std::unique_lock lock(mutex_);
    wanted_ = 0;
    idle_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  Helpers() {
    for (unsigned i = 1; i < kProcessors; ++i) std::thread([this] { help(); }).detach();
  }

  [[noreturn]] void help() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return wanted_ > 0; });
      --wanted_;
      ++busy_;
      Grid& grid = *grid_;
      lock.unlock();
      grid.run_blocks();
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Grid* grid_ = nullptr;
  unsigned wanted_ = 0;  // helpers that may still join the grid
  unsigned busy_ = 0;    // helpers that have joined it
};

}  // namespace

void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread) {
  static thread_local unsigned grids = 0;
  Grid launched(grid, block, thread, ++grids % 2 == 0);
  if (grid.x == 1) return launched.run_blocks();
  Helpers::the().run(launched);
}

}  // namespace sparsesync::emulated_cuda
