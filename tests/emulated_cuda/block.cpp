// A block of threads, each of which is a fiber.
#include "tests/emulated_cuda/block.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "tests/emulated_cuda/fiber.h"

namespace sparsesync::emulated_cuda {
namespace {

constexpr unsigned kLanes = 32;

/// Values that the lanes of a warp exchange. There are two sets of values, which alternate. A lane
/// may thus start the next exchange while another lane still reads the previous values.
struct Warp {
  std::array<std::array<std::uint64_t, kLanes>, 2> values{};
  std::array<unsigned, 2> came{};
  std::array<unsigned, 2> left{};
};

struct Thread {
  Fiber* fiber = nullptr;  // set once the thread has started
  bool ended = false;
  unsigned exchanges = 0;
  unsigned barriers = 0;
};

/// The block that the calling OS thread runs.
class Block {
 public:
  static Block& here() {
    static thread_local Block block;
    return block;
  }

  void run(const Position& first, const std::function<void()>& body, bool backwards,
           const std::atomic<unsigned>& unended) {
    position_ = first;
    const unsigned size = first.block_size.x;
    threads_.assign(size, {});
    warps_.assign((size + kLanes - 1) / kLanes, {});
    running_ = size;
    waiting_ = 0;
    barriers_ = 0;
    body_ = &body;
    while (running_ > 0) {
      progress_ = false;
      awaits_block_ = false;
      const bool is_last = unended.load(std::memory_order_relaxed) == 1;
      for (unsigned i = 0; i < size; ++i) step(backwards ? size - 1 - i : i);
      if (progress_) continue;
      if (!awaits_block_) fail("a collective that some threads of the block never reach");
      if (is_last) fail("a wait for another block, and no other block runs");
      std::this_thread::yield();
    }
  }

  Position& position() { return position_; }

  void wait_for_block() {
    Thread& own = threads_[position_.thread.x];
    const unsigned barrier = own.barriers++;
    progress_ = true;
    if (++waiting_ == running_) open();
    while (barriers_ <= barrier) give_way();
    progress_ = true;
  }

  void wait_for_other_block() {
    if (running_ == 0) return;  // called by the host
    awaits_block_ = true;
    give_way();
  }

  void exchange(unsigned mask, std::uint64_t value, std::uint64_t* values) {
    const unsigned lane = position_.thread.x % kLanes;
    const unsigned bit = 1U << lane;
    if ((mask & bit) == 0) fail("a lane that is not in the mask of its collective");
    Warp& warp = warps_[position_.thread.x / kLanes];
    const unsigned set = threads_[position_.thread.x].exchanges++ % 2;
    while ((warp.came[set] & bit) != 0) give_way();  // still read by the exchange before last
    warp.values[set][lane] = value;
    warp.came[set] |= bit;
    progress_ = true;
    while ((warp.came[set] & mask) != mask) give_way();
    for (unsigned i = 0; i < kLanes; ++i) {
      if ((mask >> i & 1U) != 0) values[i] = warp.values[set][i];
    }
    warp.left[set] |= bit;
    if ((warp.left[set] & mask) == mask) {
      warp.left[set] &= ~mask;
      warp.came[set] &= ~mask;
    }
    progress_ = true;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    std::fprintf(stderr, "emulated CUDA: block %u, thread %u: %s\n", position_.block.x,
                 position_.thread.x, what);
    std::abort();
  }

  void open() {
    waiting_ = 0;
    ++barriers_;
  }

  void give_way() {
    const unsigned number = position_.thread.x;
    threads_[number].fiber->give_way();
    position_.thread.x = number;
  }

  /// Runs a thread until it yields. Threads that never yield share one fiber.
  void step(unsigned number) {
    Thread& thread = threads_[number];
    if (thread.ended) return;
    position_.thread.x = number;
    if (thread.fiber == nullptr) {
      if (free_.empty()) free_.push_back(all_.emplace_back(std::make_unique<Fiber>()).get());
      thread.fiber = free_.back();
      free_.pop_back();
      thread.fiber->begin(*body_);
      progress_ = true;
    }
    if (!thread.fiber->resume()) return;
    thread.ended = true;
    free_.push_back(thread.fiber);
    progress_ = true;
    // Barriers do not wait for threads that have ended, as on a GPU.
    if (--running_ > 0 && waiting_ == running_) open();
  }

  Position position_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  unsigned running_ = 0;
  unsigned waiting_ = 0;
  unsigned barriers_ = 0;  // number of opened barriers
  // State of the current round over all threads:
  bool progress_ = false;
  bool awaits_block_ = false;
  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

}  // namespace

const Position& position() {
  return Block::here().position();
}

void wait_for_block() {
  Block::here().wait_for_block();
}

void wait_for_other_block() {
  Block::here().wait_for_other_block();
}

void exchange_in_warp(unsigned mask, std::uint64_t value, std::uint64_t* values) {
  Block::here().exchange(mask, value, values);
}

void run_block(const Position& first, const std::function<void()>& body, bool backwards,
               const std::atomic<unsigned>& unended) {
  Block::here().run(first, body, backwards, unended);
}

}  // namespace sparsesync::emulated_cuda
