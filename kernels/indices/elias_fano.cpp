// CPU implementation of the Elias-Fano index code. decode_as() checks its input.
#include "kernels/indices/index_code_cpu.h"

#include <algorithm>

namespace sparsesync::cpu {
namespace {

EliasFano::Layout layout_of(IndexRange range, std::size_t count) {
  return EliasFano::layout(static_cast<std::uint64_t>(range.size()), count);
}

/// Appends fixed-width numbers to a byte string.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}
  void put(std::uint64_t value, int bits) {
    pending_ |= value << static_cast<unsigned>(used_);
    if (used_ + bits >= 64) {
      std::memcpy(to_, &pending_, sizeof(pending_));
      to_ += sizeof(pending_);
      const int written = 64 - used_;
      pending_ = written < 64 ? value >> static_cast<unsigned>(written) : 0;
      used_ = bits - written;
    } else {
      used_ += bits;
    }
  }
  void finish() {
    std::memcpy(to_, &pending_, ceil_div<std::size_t>(static_cast<std::size_t>(used_), 8));
  }

 private:
  std::byte* to_;
  std::uint64_t pending_ = 0;
  int used_ = 0;
};

/// Reads fixed-width numbers one after another.
class BitReader {
 public:
  BitReader(std::span<const std::byte> bytes, int bits)
      : bytes_(bytes), bits_(static_cast<unsigned>(bits)), mask_(low_mask(bits)) {}
  std::uint64_t next() {
    const std::size_t offset = at_ / 8;
    const auto skipped = static_cast<unsigned>(at_ % 8);
    at_ += bits_;
    std::uint64_t number = load_word(bytes_, offset) >> skipped;
    // A number has at most 62 bits. A loaded word holds at least 57 bits after the skipped ones.
    if (skipped + bits_ > 64) number |= load_word(bytes_, offset + 8) << (64 - skipped);
    return number & mask_;
  }

 private:
  std::span<const std::byte> bytes_;
  unsigned bits_;
  std::uint64_t mask_;
  std::size_t at_ = 0;
};

}  // namespace

void encode_as(EliasFano, IndexRange range, std::span<const Index> indices,
               std::span<std::byte> out) {
  if (indices.empty()) return;
  const EliasFano::Layout layout = layout_of(range, indices.size());
  const std::span<std::byte> high = out.first(layout.high_bytes());
  std::fill(high.begin(), high.end(), std::byte{0});
  const auto low_bits = static_cast<unsigned>(layout.low_bits);
  const std::uint64_t mask = low_mask(layout.low_bits);
  BitWriter low(out.data() + high.size());
  std::uint64_t ordinal = 0;
  for (const Index index : indices) {
    const auto value = static_cast<std::uint64_t>(index - range.begin);
    set_bit(high, (value >> low_bits) + ordinal++);
    low.put(value & mask, layout.low_bits);
  }
  low.finish();
}

void decode_as(EliasFano, IndexRange range, std::span<const std::byte> bytes,
               std::span<Index> indices) {
  const EliasFano::Layout layout = layout_of(range, indices.size());
  BitReader low(bytes.subspan(layout.high_bytes()), layout.low_bits);
  Index* to = indices.data();
  std::uint64_t found = 0;
  std::uint64_t next = 0;  // smallest valid next value
  bool increases = true;
  for_each_bit(EliasFano::name, bytes.first(layout.high_bytes()), indices.size(),
               [&](std::size_t bit) {
                 const std::uint64_t value =
                     (bit - found++) << static_cast<unsigned>(layout.low_bits) | low.next();
                 // Check once at the end, instead of a branch per index.
                 increases &= value >= next;
                 next = value + 1;
                 *to++ = range.begin + static_cast<Index>(value);
               });
  if (!increases) throw CorruptDataError("elias_fano code: indices do not increase");
  // The last index is the largest.
  if (next > static_cast<std::uint64_t>(range.size())) {
    throw CorruptDataError(fmt::format(
        "elias_fano code: index {} is outside its range of {} indices", next - 1, range.size()));
  }
}

}  // namespace sparsesync::cpu
