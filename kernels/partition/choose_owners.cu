// CUDA implementation of choose_owners().
//
// A bit mask per row records the workers that touched it. Rows are sorted by the number of these
// workers. Each batch then assigns its rows to owners. Every block computes the workers' weights
// from the loads after the previous batches. Each large batch is a launch; a single block processes
// all small batches.
#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/lists.h"
#include "kernels/cuda/tile_scan.h"
#include "kernels/partition/owner_batches.h"
#include "kernels/partition/owners.h"

namespace sparsesync::cuda {
namespace {

using sparsesync::detail::OwnedRow;
using sparsesync::detail::OwnerBatch;
using sparsesync::detail::OwnerBatches;

/// Threads of the block that processes the small batches, and the largest size of such a batch.
constexpr int kLargeBlock = 1024;
constexpr Index kSmallBatch = 4 * kLargeBlock;

/// Number of workers up to which a block keeps per-worker numbers in shared memory. With more
/// workers, they stay in global memory.
constexpr int kNearWorkers = 1024;

using Word = unsigned long long;

/// Arguments of the kernels, passed by value.
struct Choice {
  const Index* united;
  std::int32_t* owners;
  Index rows;
  Index workers;
  Word* masks;  // per row: one bit per worker, in words of 64
  Index words;  // words per mask
  // Bits of a row number. A sort word is the number of workers that touched the row, above the row
  // number. Rows that a single worker touched come last.
  unsigned row_bits;
  Word* shared;  // number of rows that several workers touched
  // Three buffers of loads. Each holds the rows that every worker sends, the rows that every worker
  // receives, and the rows that owners not yet chosen will receive in addition. A batch reads one
  // buffer, adds to the next, and clears the third.
  Word* loads;

  __device__ Word* loads_of(Index batch) const { return loads + batch % 3 * numbers(); }
  /// Returns the size of a buffer of loads.
  SPARSESYNC_HOST_DEVICE Index numbers() const { return 2 * workers + 1; }
  /// Returns the change of loads by a row, from the number of workers that touched it.
  __device__ OwnedRow row_of(Word touchers) const {
    return {static_cast<std::uint64_t>(workers), touchers};
  }
};

/// Calls body(worker) for each worker that touched a row, in increasing order, until body returns
/// false.
template <typename Body>
__device__ void for_each_toucher(const Choice& choice, Index row, Body&& body) {
  for (Index i = 0; i < choice.words; ++i) {
    for (Word mask = choice.masks[row * choice.words + i]; mask != 0; mask &= mask - 1) {
      if (!body(i * 64 + __ffsll(static_cast<long long>(mask)) - 1)) return;
    }
  }
}

// ---- Before the first batch.

void set_masks(const Context& context, const Choice& choice, const Lists& touched) {
  auto* const halves = reinterpret_cast<std::uint32_t*>(choice.masks);
  const Index of_row = 2 * choice.words;
  const Index rows = choice.rows;
  for_each_of_lists(
      context, touched, [=] __device__(int worker, Index /*place*/, Index row, bool inside) {
        // Skip rows outside the union, because they would be invalid addresses.
        if (!inside || row < 0 || row >= rows) return;
        atomicOr(halves + row * of_row + worker / 32, 1U << static_cast<unsigned>(worker % 32));
      });
}

/// Returns the sum over all threads of the block. All of them call it.
/// @param sums  kWarp + 1 words of shared memory
__device__ Word block_sum(Word value, Word* sums) {
  Word total = 0;
  block_exclusive_sum(value, sums, &total);
  __syncthreads();
  return total;
}

/// Assigns each row that a single worker touched to that worker. Writes the sort words of the other
/// rows.
__global__ void sort_out(Choice choice, const List* touched, std::uint64_t* words) {
  __shared__ Word sums[kWarp + 1];
  __shared__ unsigned alone[kNearWorkers];  // rows that only this worker touched, per worker
  const bool near = choice.workers <= kNearWorkers;
  Word* const sent = choice.loads_of(0);
  Word* const received = sent + choice.workers;
  for (Index worker = threadIdx.x; near && worker < choice.workers; worker += kBlock) {
    alone[worker] = 0;
  }
  __syncthreads();
  Word several = 0;
  Word expected = 0;
  for (Index row = thread_number(); row < choice.rows; row += thread_count()) {
    Word touchers = 0;
    Index first = 0;
    for (Index i = choice.words; i-- > 0;) {
      const Word mask = choice.masks[row * choice.words + i];
      touchers += static_cast<Word>(__popcll(mask));
      if (mask != 0) first = i * 64 + __ffsll(static_cast<long long>(mask)) - 1;
    }
    // A row that no worker touched gets owner 0. It does not count in any load.
    if (touchers < 2) choice.owners[row] = static_cast<std::int32_t>(first);
    if (touchers == 1 && near) atomicAdd(alone + first, 1U);
    const OwnedRow added = choice.row_of(touchers);
    if (touchers == 1 && !near) {
      atomicAdd(sent + first, Word{added.sends});
      atomicAdd(received + first, Word{added.receives});
    }
    several += touchers >= 2 ? 1 : 0;
    expected += touchers >= 2 ? added.receives : 0;
    const Word key = touchers >= 2 ? touchers : static_cast<Word>(choice.workers) + 1;
    words[row] = key << choice.row_bits | static_cast<Word>(row);
  }
  const Word all_several = block_sum(several, sums);
  const Word all_expected = block_sum(expected, sums);
  if (threadIdx.x == 0 && all_several != 0) {
    atomicAdd(choice.shared, all_several);
    atomicAdd(received + choice.workers, all_expected);
  }
  const OwnedRow row_of_one = choice.row_of(1);
  for (Index worker = threadIdx.x; near && worker < choice.workers; worker += kBlock) {
    if (alone[worker] == 0) continue;
    atomicAdd(sent + worker, Word{alone[worker] * row_of_one.sends});
    atomicAdd(received + worker, Word{alone[worker] * row_of_one.receives});
  }
  if (blockIdx.x != 0) return;
  for (Index worker = threadIdx.x; worker < choice.workers; worker += kBlock) {
    atomicAdd(sent + worker, static_cast<Word>(touched[worker].size));
    atomicAdd(received + worker, static_cast<Word>(choice.rows));
  }
}

// ---- A batch.

/// Data that the threads of a block share.
struct Shared {
  Word weights[kNearWorkers];
  unsigned owned[kNearWorkers];  // rows of the batch that the block assigned, per owner
  unsigned extra[kNearWorkers];  // rows received for them beyond the union, per owner
  Word sums[kWarp + 1];
};

/// The weight of each worker for a batch, relative to the others. The weight is the distance of the
/// worker's load below a water level: the level that the batch would fill all loads up to.
class Weights {
 public:
  /// Computes the weights. All threads of the block call it.
  /// @param row  middle row of the batch
  __device__ Weights(const Choice& choice, const OwnerBatch& batch, Index all, const OwnedRow& row,
                     const Word* loads, Shared& shared)
      : workers_(choice.workers),
        near_(choice.workers <= kNearWorkers ? shared.weights : nullptr),
        sent_(loads),
        received_(loads + choice.workers),
        row_(row) {
    const auto workers = static_cast<Word>(workers_);
    will_send_ = static_cast<Word>(all - batch.begin) * row.sends / workers;
    will_receive_ = loads[2 * workers_] / workers;
    for (Index worker = threadIdx.x; near_ != nullptr && worker < workers_; worker += blockDim.x) {
      near_[worker] = load(worker);
    }
    find_level(row.load_of(batch), shared.sums);
    // Each thread converts the loads that it wrote.
    for (Index worker = threadIdx.x; near_ != nullptr && worker < workers_; worker += blockDim.x) {
      near_[worker] = below_level(near_[worker]);
    }
    __syncthreads();
  }

  __device__ Word of(Index worker) const {
    return near_ != nullptr ? near_[worker] : below_level(load(worker));
  }

 private:
  __device__ Word load(Index worker) const {
    return row_.load(sent_[worker] + will_send_, received_[worker] + will_receive_);
  }
  __device__ Word below_level(Word load) const { return level_ > load ? level_ - load : 0; }

  /// Finds the water level, the same as the CPU implementation finds with sorted loads. It drops
  /// the loads above the level until there are none. The level falls each time, but never below the
  /// result. (Loads equal to the level do not change it; nor does rounding down.)
  __device__ void find_level(Word fill, Word* sums) {
    Word before = 0;
    while (true) {
      Word sum = 0;
      Word count = 0;
      for (Index worker = threadIdx.x; worker < workers_; worker += blockDim.x) {
        const Word own = near_ != nullptr ? near_[worker] : load(worker);
        if (own > level_) continue;
        sum += own;
        ++count;
      }
      sum = block_sum(sum, sums);
      count = block_sum(count, sums);
      if (count == before) return;
      level_ = (fill + sum) / count;
      before = count;
    }
  }

  Index workers_;
  Word* near_;  // null if there are too many workers
  const Word* sent_;
  const Word* received_;
  OwnedRow row_;
  Word will_send_ = 0;  // per worker, for the rows that have no owner yet
  Word will_receive_ = 0;
  Word level_ = ~Word{0};
};

/// Picks one of the workers that touched a row, at random by weight.
__device__ Index pick(const Choice& choice, const Weights& weights, Index row, Word touchers) {
  const Word random = mix64(static_cast<Word>(choice.united[row]));
  Word sum = 0;
  for_each_toucher(choice, row, [&](Index worker) {
    sum += weights.of(worker);
    return true;
  });
  // If all weights are zero, the workers are equally likely.
  const bool weighed = sum != 0;
  Word rest = __umul64hi(random, weighed ? sum : touchers);
  Index picked = 0;
  for_each_toucher(choice, row, [&](Index worker) {
    picked = worker;
    const Word weight = weighed ? weights.of(worker) : 1;
    if (rest < weight) return false;
    rest -= weight;
    return true;
  });
  return picked;
}

/// Processes the block's share of a batch. All its threads call it.
/// @param sorted  sort words of Choice
__device__ void choose_batch(const Choice& choice, const std::uint64_t* sorted, Index number,
                             const OwnerBatch& batch, Index all, Shared& shared) {
  const bool near = choice.workers <= kNearWorkers;
  const Word* const loads = choice.loads_of(number);
  Word* const sent = choice.loads_of(number + 1);
  Word* const received = sent + choice.workers;
  if (blockIdx.x == 0) {
    Word* const cleared = choice.loads_of(number + 2);
    for (Index i = threadIdx.x; i < choice.numbers(); i += blockDim.x) {
      cleared[i] = 0;
      atomicAdd(sent + i, loads[i]);
    }
  }
  for (Index worker = threadIdx.x; near && worker < choice.workers; worker += blockDim.x) {
    shared.owned[worker] = 0;
    shared.extra[worker] = 0;
  }
  const OwnedRow middle = choice.row_of(sorted[middle_of(batch)] >> choice.row_bits);
  const Weights weights(choice, batch, all, middle, loads, shared);
  Word expected = 0;
  for (Index i = thread_number(); i < batch.size; i += thread_count()) {
    const std::uint64_t word = sorted[batch.begin + i];
    const auto row = static_cast<Index>(word & low_mask(static_cast<int>(choice.row_bits)));
    const Word touchers = word >> choice.row_bits;
    const Index owner = pick(choice, weights, row, touchers);
    choice.owners[row] = static_cast<std::int32_t>(owner);
    const OwnedRow added = choice.row_of(touchers);
    expected += added.receives;
    if (near) {
      atomicAdd(shared.owned + owner, 1U);
      atomicAdd(shared.extra + owner, static_cast<unsigned>(added.receives));
    } else {
      atomicAdd(sent + owner, Word{added.sends});
      atomicAdd(received + owner, Word{added.receives});
    }
  }
  const Word all_expected = block_sum(expected, shared.sums);
  if (threadIdx.x == 0) atomicAdd(received + choice.workers, ~all_expected + 1);
  for (Index worker = threadIdx.x; near && worker < choice.workers; worker += blockDim.x) {
    if (shared.owned[worker] == 0) continue;
    atomicAdd(sent + worker, Word{shared.owned[worker] * middle.sends});
    atomicAdd(received + worker, Word{shared.extra[worker]});
  }
}

__global__ void choose_one(Choice choice, const std::uint64_t* sorted, Index number) {
  __shared__ Shared shared;
  const auto all = static_cast<Index>(*choice.shared);
  OwnerBatches batches(all);
  OwnerBatch batch = batches.next();
  for (Index i = 0; i < number; ++i) batch = batches.next();
  if (batch.size == 0) return;
  choose_batch(choice, sorted, number, batch, all, shared);
}

/// Processes all batches from a number on, in a single block.
__global__ void __launch_bounds__(kLargeBlock)
    choose_others(Choice choice, const std::uint64_t* sorted, Index first_number) {
  __shared__ Shared shared;
  const auto all = static_cast<Index>(*choice.shared);
  OwnerBatches batches(all);
  OwnerBatch batch = batches.next();
  for (Index number = 0; batch.size > 0; ++number, batch = batches.next()) {
    if (number < first_number) continue;
    choose_batch(choice, sorted, number, batch, all, shared);
    __syncthreads();  // the next batch reads the loads that this one added
  }
}

/// Returns the number of blocks for `rows` rows. It is small because each block reads the loads of
/// all workers.
Index blocks_of(const Context& context, Index rows, Index of_processor) {
  return std::min(ceil_div<Index>(rows, kBlock),
                  of_processor * stream_of(context).multiprocessors());
}

void choose_batches(const Context& context, const Choice& choice, const std::uint64_t* sorted) {
  // Batches for the case that several workers touched each row. Otherwise the batches are smaller.
  // The single block's are never larger than these.
  OwnerBatches batches(choice.rows);
  Index number = 0;
  for (OwnerBatch batch = batches.next(); batch.size > kSmallBatch; batch = batches.next()) {
    launch<choose_one>(context, blocks_of(context, batch.size, 4), kBlock, choice, sorted,
                       number++);
  }
  // A batch of a small union has few rows. More threads would only wait for each other.
  const int threads = choice.rows <= kLargeBlock ? kBlock : kLargeBlock;
  launch<choose_others>(context, 1, threads, choice, sorted, number);
}

}  // namespace

void choose_owners(const Context& context, std::span<const Index> united,
                   std::span<const std::span<const Index>> touched, std::span<std::int32_t> owners,
                   OwnersWorkspace& /*workspace*/) {
  SPARSESYNC_EXPECT(united.size(), ==, owners.size());
  SPARSESYNC_EXPECT(touched.size(), <=, std::size_t{1} << 16U);
  if (united.empty()) return;
  Scratch scratch(context);
  const Lists lists = upload_lists(context, scratch, touched);
  Choice choice{};
  choice.united = united.data();
  choice.owners = owners.data();
  choice.rows = std::ssize(united);
  choice.workers = std::ssize(touched);
  choice.words = ceil_div<Index>(choice.workers, 64);
  choice.row_bits = static_cast<unsigned>(bit_width_below(static_cast<std::uint64_t>(choice.rows)));
  const Index mask_words = choice.rows * choice.words;
  const std::span<Word> cleared = scratch.allocate<Word>(mask_words + 3 * choice.numbers() + 1);
  clear(context, cleared.data(), cleared.size_bytes());
  choice.masks = cleared.data();
  choice.loads = choice.masks + mask_words;
  choice.shared = choice.loads + 3 * choice.numbers();
  set_masks(context, choice, lists);
  const std::span<std::uint64_t> words = scratch.allocate<std::uint64_t>(choice.rows);
  launch<sort_out>(context, blocks_of(context, choice.rows, 8), kBlock, choice, lists.lists.data(),
                   words.data());
  const auto first_bit = static_cast<int>(choice.row_bits);
  const std::span<const std::uint64_t> sorted =
      sort_words(context, scratch, words, first_bit,
                 first_bit + bit_width_below(static_cast<std::uint64_t>(choice.workers) + 2));
  choose_batches(context, choice, sorted.data());
}

}  // namespace sparsesync::cuda
