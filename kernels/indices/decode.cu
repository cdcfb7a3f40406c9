// CUDA implementation of decode().
//
// A block decodes some words of a bit string. Decoupled look-back gives the block the number of
// indices before them. The block lists its set bits in shared memory, so that neighbouring threads
// write neighbouring indices, and adds the low parts.
//
// The bytes are not trusted. No more indices are written than were announced. Every written index
// lies in the range, even if a fault is recorded, because later operations read the indices before
// the host learns of the fault.
#include "kernels/indices/index_code.h"

#include "kernels/cuda/job_table.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_scan.h"
#include "kernels/indices/words.cuh"

namespace sparsesync::cuda {
namespace {

// Words per thread in a tile. If few bits are set, tiles are larger, so that enough loads are in
// flight.
constexpr int kDenseWords = 1;
constexpr int kSparseWords = 4;
// Set bits of a tile that are listed at a time. In an Elias-Fano code every second or third bit is
// set, so a tile of 2^14 bits seldom needs a second round.
constexpr int kListed = 9216;
// Indices per tile, for codes without bit strings.
constexpr int kTile = 2048;

/// A DecodeJob with derived values for the kernel.
struct DecodeWork {
  const std::byte* bytes;
  Index* indices;
  Index count;
  Index first_tile;
  Index tiles;
  Index all_bytes;
  Index bit_bytes;     // Bytes of the bit string, which comes first.
  Index begin;         // First index of the range.
  std::uint64_t most;  // Last index of the range, relative to `begin`.
  int low_bits;        // Bits of each low part, after the bit string.
  int shift_of_each;   // The bit of number i is shifted up by i times this.
  IndexCode code;
  bool sparse;  // Few bits are set.
};

/// Returns the low part of number i.
__device__ std::uint64_t low_part(const DecodeWork& work, Index i) {
  const std::byte* const end = work.bytes + work.all_bytes;
  const std::byte* const low = work.bytes + work.bit_bytes;
  const Index skew = skew_of(low);
  const Index bit = i * work.low_bits + 8 * skew;
  const std::byte* const at = low - skew + bit / kWordBits * kWordBytes;
  const auto shift = static_cast<unsigned>(bit % kWordBits);
  std::uint64_t number = load_word(at, work.bytes, end) >> shift;
  if (shift + static_cast<unsigned>(work.low_bits) > kWordBits) {
    number |= load_word(at + kWordBytes, work.bytes, end) << (kWordBits - shift);
  }
  return number & low_mask(work.low_bits);
}

/// Collects the faults that a thread finds. They are recorded once at the end, because each record
/// goes to host memory.
class Findings {
 public:
  __device__ void add(bool is_wrong, Fault fault) {
    if (is_wrong) fault_ = fault;
  }
  __device__ void report(FaultWord* faults) const {
    if (fault_ != Fault::none) record_fault(faults, fault_);
  }

 private:
  Fault fault_ = Fault::none;
};

/// Positions of set bits in a tile, as listed.
struct Listed {
  const std::uint16_t* places;
  int count;
  // Position of the previous bit if it is adjacent to the first one; otherwise below -1.
  int place_before;
  Index first_bit;  // Position of the tile in the bit string.
  Index first;      // Ordinal number of the first listed bit.
};

/// Writes the indices of the listed bits. All threads of the block call it.
__device__ void write_indices(const DecodeWork& work, const Listed& listed, Findings& findings) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool has_low_parts = work.code == IndexCode::elias_fano;
  const auto low_bits = static_cast<unsigned>(work.low_bits);
  // All lanes run the same number of iterations, because they exchange values.
  for (int base = 0; base < listed.count; base += static_cast<int>(blockDim.x)) {
    const int place = base + static_cast<int>(threadIdx.x);
    const bool is_there = place < listed.count;
    const Index i = listed.first + place;
    const int bit = is_there ? listed.places[place] : 0;
    std::uint64_t low = 0;
    if (has_low_parts) {
      low = is_there && low_bits > 0 ? low_part(work, i) : 0;
      // Only numbers with the same high part can fail to increase. Their bits are adjacent.
      std::uint64_t low_before = __shfl_up_sync(kAllLanes, low, 1);
      if (is_there) {
        const int bit_before = place > 0 ? listed.places[place - 1] : listed.place_before;
        const bool is_neighbour = bit_before == bit - 1;
        if (lane == 0 && is_neighbour) low_before = low_bits > 0 ? low_part(work, i - 1) : 0;
        findings.add(is_neighbour && low_before >= low, Fault::not_increasing);
      }
    }
    if (!is_there) continue;
    const auto high = static_cast<std::uint64_t>(listed.first_bit + bit - i * work.shift_of_each);
    std::uint64_t number = high << low_bits | low;
    const bool is_outside = high > work.most >> low_bits || number > work.most;
    findings.add(is_outside, Fault::outside_range);
    if (is_outside) number = work.most;
    work.indices[i] = work.begin + static_cast<Index>(number);
  }
}

/// The words of one thread in a tile.
template <int kWords>
class TileBits {
 public:
  __device__ TileBits(const std::byte* at, const std::byte* begin, const std::byte* end) {
    for (int k = 0; k < kWords; ++k) words_[k] = load_word(at + k * kWordBytes, begin, end);
  }
  __device__ int count() const {
    int count = 0;
    for (int k = 0; k < kWords; ++k) count += __popcll(words_[k]);
    return count;
  }
  /// Lists the positions, within the tile, of the bits whose list index is in [0, kListed).
  /// @param at  list index of the thread's first bit; outside the range if it belongs to another
  ///            round
  __device__ void list(int at, std::uint16_t* places) const {
    for (int k = 0; k < kWords; ++k) {
      const int first = (static_cast<int>(threadIdx.x) * kWords + k) * static_cast<int>(kWordBits);
      list_of(static_cast<unsigned>(words_[k]), first, at, places);
      list_of(static_cast<unsigned>(words_[k] >> 32U), first + 32, at, places);
    }
  }

 private:
  __device__ static void list_of(unsigned bits, int first, int& at, std::uint16_t* places) {
    const int end = at + __popc(bits);
    if (end <= 0 || at >= kListed) {
      at = end;
      return;
    }
    for (; bits != 0; bits &= bits - 1, ++at) {
      if (at < 0 || at >= kListed) continue;
      places[at] = static_cast<std::uint16_t>(first + __ffs(static_cast<int>(bits)) - 1);
    }
  }

  std::uint64_t words_[kWords];
};

/// Shared memory of a block.
struct DecodeMemory {
  int* sums;  // [kWarp + 1]
  Index* number;
  std::uint16_t* places;  // [kListed]
};

/// Finishes a code. Records a fault if all tiles together have another number of indices than
/// announced, and writes the missing indices. All threads of the last tile call it.
__device__ void close(const DecodeWork& work, Index found, Findings& findings) {
  findings.add(found != work.count && threadIdx.x == 0, Fault::wrong_count);
  for (Index i = found + threadIdx.x; i < work.count; i += blockDim.x) {
    work.indices[i] = work.begin + i;
  }
}

template <int kWords>
__device__ void decode_bits(const DecodeWork& work, Index tile, Tiles tiles,
                            const DecodeMemory& shared, Findings& findings) {
  static_assert(kBlock * kWords * kWordBits <= Index{1} << 16, "places have 16 bits");
  const std::byte* const end = work.bytes + work.bit_bytes;
  const Index skew = skew_of(work.bytes);
  const std::byte* const at = work.bytes - skew + tile * (kBlock * kWords * kWordBytes);
  const TileBits<kWords> bits(at + static_cast<Index>(threadIdx.x) * (kWords * kWordBytes),
                              work.bytes, end);
  int total = 0;
  const int own = block_exclusive_sum(bits.count(), shared.sums, &total);
  const Index before = work.tiles > 1 ? tiles.before(tile, total, shared.number) : 0;
  if (tile == work.tiles - 1) close(work, before + total, findings);

  const Index room = work.count - before;
  const int written = room >= total ? total : room > 0 ? static_cast<int>(room) : 0;
  const bool has_neighbour =
      tile > 0 && (load_word(at - kWordBytes, work.bytes, end) >> (kWordBits - 1)) != 0;
  int place_before = has_neighbour ? -1 : -2;
  for (int round = 0; round < written; round += kListed) {
    bits.list(own - round, shared.places);
    __syncthreads();
    const int listed = written - round < kListed ? written - round : kListed;
    write_indices(work,
                  {shared.places, listed, place_before, (at - work.bytes) * 8, before + round},
                  findings);
    place_before = shared.places[listed - 1];
    __syncthreads();
  }
}

template <typename Stored>
__device__ void decode_numbers(const DecodeWork& work, Index tile, Findings& findings) {
  const auto stored = [&](Index i) {
    return static_cast<std::uint64_t>(
        load_anywhere<Stored>(work.bytes + i * static_cast<Index>(sizeof(Stored))));
  };
  const Index first = tile * kTile;
  const Index end = work.count - first <= kTile ? work.count : first + kTile;
  for (Index i = first + threadIdx.x; i < end; i += blockDim.x) {
    std::uint64_t number = stored(i);
    findings.add(i > 0 && stored(i - 1) >= number, Fault::not_increasing);
    findings.add(number > work.most, Fault::outside_range);
    if (number > work.most) number = work.most;
    work.indices[i] = work.begin + static_cast<Index>(number);
  }
}

__device__ void write_all(const DecodeWork& work, Index tile) {
  const Index first = tile * kTile;
  const Index end = work.count - first <= kTile ? work.count : first + kTile;
  for (Index i = first + threadIdx.x; i < end; i += blockDim.x) work.indices[i] = work.begin + i;
}

/// @param ordered  whether tiles look back and must therefore be claimed in order
__global__ void __launch_bounds__(kBlock, 4)
    decode_kernel(const __grid_constant__ JobTable<DecodeWork> table, Tiles tiles, bool ordered,
                  FaultWord* faults) {
  __shared__ int sums[kWarp + 1];
  __shared__ Index number;
  __shared__ std::uint16_t places[kListed];
  const Index taken = ordered ? tiles.next_tile(&number) : static_cast<Index>(blockIdx.x);
  const DecodeWork& work = table.of(taken);
  const Index tile = taken - work.first_tile;
  const DecodeMemory shared{sums, &number, places};
  Findings findings;
  switch (work.code) {
    case IndexCode::coo:
      if (work.most < std::uint64_t{1} << 32U) {
        decode_numbers<std::uint32_t>(work, tile, findings);
      } else {
        decode_numbers<std::uint64_t>(work, tile, findings);
      }
      break;
    case IndexCode::elias_fano:
    case IndexCode::bitmap: {
      const Tiles own = tiles.from(work.first_tile);
      if (work.sparse) {
        decode_bits<kSparseWords>(work, tile, own, shared, findings);
      } else {
        decode_bits<kDenseWords>(work, tile, own, shared, findings);
      }
      break;
    }
    case IndexCode::all:
      write_all(work, tile);
      break;
  }
  findings.report(faults);
}

DecodeWork work_of(const DecodeJob& job) {
  DecodeWork work{};
  work.bytes = job.bytes.data();
  work.indices = job.indices.data();
  work.count = std::ssize(job.indices);
  work.all_bytes = std::ssize(job.bytes);
  work.bit_bytes = work.all_bytes;
  work.begin = job.range.begin;
  work.most = static_cast<std::uint64_t>(job.range.size()) - 1;
  work.code = job.code;
  if (job.code == IndexCode::elias_fano) {
    const EliasFano::Layout layout =
        EliasFano::layout(work.most + 1, static_cast<std::uint64_t>(work.count));
    work.bit_bytes = static_cast<Index>(layout.high_bytes());
    work.low_bits = layout.low_bits;
    work.shift_of_each = 1;
  }
  // A bitmap is sparse if fewer than one in 16 bits is set.
  work.sparse = job.code == IndexCode::bitmap && work.bit_bytes > 2 * work.count;
  return work;
}

bool is_bit_string(IndexCode code) {
  return code == IndexCode::elias_fano || code == IndexCode::bitmap;
}

Index tiles_of(const DecodeWork& work) {
  if (!is_bit_string(work.code)) return ceil_div<Index>(work.count, kTile);
  const Index words = ceil_div<Index>(skew_of(work.bytes) + work.bit_bytes, kWordBytes);
  return ceil_div<Index>(words, kBlock * (work.sparse ? kSparseWords : kDenseWords));
}

}  // namespace

void decode_all(const Context& context, std::span<const DecodeJob> jobs) {
  for (const DecodeJob& job : jobs) {
    sparsesync::detail::expect_bytes(job.code, job.range, std::ssize(job.indices),
                                     std::ssize(job.bytes));
  }
  bool ordered = false;
  const auto add_to = [&](JobTable<DecodeWork>& table, const DecodeJob& job) {
    if (job.indices.empty()) return;
    DecodeWork work = work_of(job);
    work.tiles = tiles_of(work);
    ordered |= is_bit_string(work.code) && work.tiles > 1;
    table.add(work, work.tiles);
  };
  for_tables<DecodeWork>(jobs, add_to, [&](const JobTable<DecodeWork>& table) {
    Scratch scratch(context);
    const Tiles tiles =
        ordered ? fresh_tiles(context, scratch, table.tiles()) : Tiles(std::span<std::uint64_t>());
    launch<decode_kernel>(context, table.tiles(), kBlock, table, tiles, ordered,
                          stream_of(context).faults());
    ordered = false;
  });
}

void decode(const Context& context, IndexCode code, IndexRange range,
            std::span<const std::byte> bytes, std::span<Index> indices) {
  const DecodeJob job{code, range, bytes, indices};
  decode_all(context, {&job, 1});
}

}  // namespace sparsesync::cuda
