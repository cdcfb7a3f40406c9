// CUDA implementation of encode().
//
// A block reads kTile indices once and writes their bytes of the code. In a bit string, these are
// the bytes after that of the preceding tile's last index, up to that of its own last index.
//
// Each byte, even a zero byte, has exactly one writer. Nothing is cleared first, and there are no
// atomic operations on global memory. Indices that are unordered or outside the range, from damaged
// input of an earlier operation, produce wrong bytes. They never cause writes outside the output.
#include "kernels/indices/index_code.h"

#include "kernels/cuda/job_table.h"
#include "kernels/cuda/launch.h"
#include "kernels/indices/words.cuh"

namespace sparsesync::cuda {
namespace {

// Each thread of a full block loads eight indices at once. The low parts of a tile begin at a byte
// boundary for any width. Up to seven indices of the next tile have bits in the tile's last byte.
constexpr int kLoads = 8;
constexpr int kStaged = kBlock * kLoads;
constexpr int kTile = kStaged - 8;
constexpr int kFollowing = 7;

/// An EncodeJob with derived values for the kernel.
struct EncodeWork {
  const Index* indices;
  std::byte* out;
  Index count;
  Index first_tile;
  Index bit_bytes;      // Bytes of the bit string, which comes first.
  std::uint64_t begin;  // First index of the range.
  std::uint64_t most;   // Last index of the range, relative to `begin`.
  int low_bits;         // Bits of each low part, after the bit string.
  int shift_of_each;    // The bit of number i is shifted up by i times this.
  IndexCode code;
  bool cleared;  // The bit string is already 0.
};

/// Assembles a range of output bytes in shared memory, as the OR of what the threads put there, in
/// any order. All threads of the block call each function except put() and put_bit().
class Window {
 public:
  // In 32-bit words, because shared memory has no 64-bit atomic OR.
  static constexpr int kWords = 1024;
  /// Number of bytes that a window holds at any alignment.
  static constexpr Index kMost = kWords * 4 - kWordBytes;

  /// Initializes the bytes [begin, end), at most kMost, to zero.
  /// @param words  kWords words of shared memory that are no longer in use
  __device__ Window(unsigned* words, std::byte* begin, std::byte* end)
      : words_(words), begin_(begin), end_(end), skew_(static_cast<int>(skew_of(begin))) {
    const int used = 2 * count();
    for (int i = static_cast<int>(threadIdx.x); i < used; i += static_cast<int>(blockDim.x)) {
      words_[i] = 0;
    }
    __syncthreads();
  }

  /// Puts the bits of a number at bit offset `bit`.
  __device__ void put(Index bit, std::uint64_t number) {
    const auto at = static_cast<unsigned>(bit) + 8 * static_cast<unsigned>(skew_);
    const unsigned shift = at % 32;
    unsigned* const word = words_ + at / 32;
    const std::uint64_t low = number << shift;
    put_word(word, static_cast<unsigned>(low));
    put_word(word + 1, static_cast<unsigned>(low >> 32U));
    if (shift != 0) put_word(word + 2, static_cast<unsigned>(number >> (64 - shift)));
  }
  __device__ void put_bit(Index bit) {
    const auto at = static_cast<unsigned>(bit) + 8 * static_cast<unsigned>(skew_);
    atomicOr(words_ + at / 32, 1U << at % 32);
  }

  /// Writes the bytes to the output. The shared memory may then be reused.
  __device__ void write() {
    __syncthreads();
    const int words = count();
    for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
      const std::uint64_t word =
          static_cast<std::uint64_t>(words_[2 * i + 1]) << 32U | words_[2 * i];
      store_word(begin_ - skew_ + i * kWordBytes, word, begin_, end_);
    }
    __syncthreads();
  }

 private:
  __device__ int count() const {
    return static_cast<int>(ceil_div<Index>(skew_ + (end_ - begin_), kWordBytes));
  }
  /// Skips zero bits, whose word may be outside the window.
  __device__ static void put_word(unsigned* word, unsigned bits) {
    if (bits != 0) atomicOr(word, bits);
  }

  unsigned* words_;
  std::byte* begin_;
  std::byte* end_;
  int skew_;
};

/// Returns index i relative to the start of the range.
__device__ std::uint64_t number_of(const EncodeWork& work, Index i) {
  const std::uint64_t number = static_cast<std::uint64_t>(__ldg(work.indices + i)) - work.begin;
  return number < work.most ? number : work.most;
}

/// Returns the position of number i's bit in the bit string.
__device__ Index bit_of(const EncodeWork& work, Index i, std::uint64_t number) {
  return static_cast<Index>(number >> static_cast<unsigned>(work.low_bits)) +
         i * work.shift_of_each;
}

/// The numbers of a tile and the first numbers of the next one, in shared memory.
struct Staged {
  Index first;  // how many numbers come before
  int own;
  int all;  // including those of the next tile
  const std::uint64_t* numbers;

  __device__ Index bit(const EncodeWork& work, int i) const {
    return bit_of(work, first + i, numbers[i]);
  }
  /// Returns the first number from `from` whose bit is at or after `bound`.
  __device__ int behind(const EncodeWork& work, int from, Index bound) const {
    int size = all - from;
    while (size > 0) {
      const int half = size / 2;
      if (bit(work, from + half) < bound) {
        from += half + 1;
        size -= half + 1;
      } else {
        size = half;
      }
    }
    return from;
  }
};

/// Loads a tile's numbers into shared memory.
__device__ Staged stage(const EncodeWork& work, Index tile, std::uint64_t* numbers) {
  const Index first = tile * kTile;
  const Index left = work.count - first;
  const int own = left < kTile ? static_cast<int>(left) : kTile;
  const int all = left < kTile + kFollowing ? static_cast<int>(left) : kTile + kFollowing;
  const int threads = static_cast<int>(blockDim.x);
  for (int base = static_cast<int>(threadIdx.x); base < all; base += kLoads * threads) {
    std::uint64_t loaded[kLoads];  // loads in flight together
    for (int k = 0; k < kLoads; ++k) {
      const int i = base + k * threads;
      loaded[k] = i < all ? number_of(work, first + i) : 0;
    }
    for (int k = 0; k < kLoads; ++k) {
      const int i = base + k * threads;
      if (i < all) numbers[i] = loaded[k];
    }
  }
  __syncthreads();
  return {first, own, all, numbers};
}

/// Sets the bytes [begin, end) to zero.
__device__ void fill_zero(std::byte* begin, std::byte* end) {
  const Index skew = skew_of(begin);
  const Index words = ceil_div<Index>(skew + (end - begin), kWordBytes);
  for (Index i = threadIdx.x; i < words; i += blockDim.x) {
    store_word(begin - skew + i * kWordBytes, 0, begin, end);
  }
}

/// Writes the tile's bytes of the bit string, one window after another. Skips long gaps, which can
/// be as long as the range.
__device__ void write_bits(const EncodeWork& work, const Staged& staged, unsigned* window_words) {
  constexpr Index kLongGap = 1024;
  Index at = 0;
  if (staged.first > 0) {
    at = bit_of(work, staged.first - 1, number_of(work, staged.first - 1)) / 8 + 1;
  }
  const bool is_last = staged.first + staged.own == work.count;
  const Index end = is_last ? work.bit_bytes : staged.bit(work, staged.own - 1) / 8 + 1;
  int next = 0;  // next number to put
  while (at < end) {
    Index next_byte = end;
    if (next < staged.all) {
      const Index byte = staged.bit(work, next) / 8;
      next_byte = byte < at ? at : byte < end ? byte : end;
    }
    if (next_byte - at >= kLongGap) {
      if (!work.cleared) fill_zero(work.out + at, work.out + next_byte);
      at = next_byte;
      continue;
    }
    const Index window_end = end - at <= Window::kMost ? end : at + Window::kMost;
    const int behind = window_end == end ? staged.all : staged.behind(work, next, window_end * 8);
    Window window(window_words, work.out + at, work.out + window_end);
    const auto bits = static_cast<std::uint64_t>(window_end - at) * 8;
    for (int i = next + static_cast<int>(threadIdx.x); i < behind;
         i += static_cast<int>(blockDim.x)) {
      const Index bit = staged.bit(work, i) - at * 8;
      if (static_cast<std::uint64_t>(bit) < bits) window.put_bit(bit);
    }
    window.write();
    at = window_end;
    next = behind;
  }
}

/// Writes the tile's low parts.
__device__ void write_low_parts(const EncodeWork& work, const Staged& staged,
                                unsigned* window_words) {
  const int bits = work.low_bits;
  if (bits == 0) return;
  const std::uint64_t mask = low_mask(bits);
  std::byte* const low = work.out + work.bit_bytes;
  // A multiple of 8, like kTile, so that each window begins at a byte boundary.
  const int most = static_cast<int>(Window::kMost) / bits * 8;
  for (int begin = 0; begin < staged.own; begin += most) {
    const int end = staged.own - begin <= most ? staged.own : begin + most;
    Window window(window_words, low + (staged.first + begin) / 8 * bits,
                  low + ceil_div<Index>((staged.first + end) * bits, 8));
    for (int i = begin + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      window.put(static_cast<Index>(i - begin) * bits, staged.numbers[i] & mask);
    }
    window.write();
  }
}

template <typename Stored>
__device__ void write_numbers(const EncodeWork& work, Index tile) {
  const Index first = tile * kTile;
  const Index end = work.count - first <= kTile ? work.count : first + kTile;
  for (Index i = first + threadIdx.x; i < end; i += blockDim.x) {
    store_anywhere(work.out + i * static_cast<Index>(sizeof(Stored)),
                   static_cast<Stored>(number_of(work, i)));
  }
}

__global__ void __launch_bounds__(kBlock)
    encode_kernel(const __grid_constant__ JobTable<EncodeWork> table) {
  __shared__ std::uint64_t numbers[kStaged];
  __shared__ unsigned window[Window::kWords];
  const Index block = blockIdx.x;
  const EncodeWork& work = table.of(block);
  const Index tile = block - work.first_tile;
  if (work.code == IndexCode::coo) {
    if (work.most < std::uint64_t{1} << 32U) return write_numbers<std::uint32_t>(work, tile);
    return write_numbers<std::uint64_t>(work, tile);
  }
  const Staged staged = stage(work, tile, numbers);
  write_bits(work, staged, window);
  write_low_parts(work, staged, window);
}

EncodeWork work_of(const EncodeJob& job) {
  EncodeWork work{};
  work.indices = job.indices.data();
  work.out = job.out.data();
  work.count = std::ssize(job.indices);
  work.begin = static_cast<std::uint64_t>(job.range.begin);
  work.most = static_cast<std::uint64_t>(job.range.size()) - 1;
  work.code = job.code;
  work.bit_bytes = std::ssize(job.out);
  if (job.code == IndexCode::elias_fano) {
    const EliasFano::Layout layout =
        EliasFano::layout(work.most + 1, static_cast<std::uint64_t>(work.count));
    work.bit_bytes = static_cast<Index>(layout.high_bytes());
    work.low_bits = layout.low_bits;
    work.shift_of_each = 1;
  }
  return work;
}

/// Returns whether to clear a bit string before the kernel. In a bit string with many more bits
/// than indices, a single block might have to fill most of it.
bool is_cleared_first(const EncodeWork& work) {
  constexpr Index kLong = Index{1} << 20;
  return work.code == IndexCode::bitmap && work.bit_bytes > kLong && work.bit_bytes > work.count;
}

}  // namespace

void encode_all(const Context& context, std::span<const EncodeJob> jobs) {
  for (const EncodeJob& job : jobs) {
    sparsesync::detail::expect_room(job.code, job.range, std::ssize(job.indices),
                                    std::ssize(job.out));
  }
  const auto add_to = [&](JobTable<EncodeWork>& table, const EncodeJob& job) {
    if (job.out.empty()) return;  // no indices, or all of them
    EncodeWork work = work_of(job);
    work.cleared = is_cleared_first(work);
    if (work.cleared) clear(context, work.out, job.out.size());
    table.add(work, ceil_div<Index>(work.count, kTile));
  };
  for_tables<EncodeWork>(jobs, add_to, [&](const JobTable<EncodeWork>& table) {
    launch<encode_kernel>(context, table.tiles(), kBlock, table);
  });
}

void encode(const Context& context, IndexCode code, IndexRange range,
            std::span<const Index> indices, std::span<std::byte> out) {
  const EncodeJob job{code, range, indices, out};
  encode_all(context, {&job, 1});
}

}  // namespace sparsesync::cuda
