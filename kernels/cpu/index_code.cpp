// CPU bodies of the index codes.
#include "kernels/index_code.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <numeric>

namespace sparsesync {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

std::string_view name_of(IndexCode code) {
  switch (code) {
    case IndexCode::coo:
      return "coo";
    case IndexCode::elias_fano:
      return "elias_fano";
    case IndexCode::bitmap:
      return "bitmap";
    case IndexCode::all:
      return "all";
  }
  throw ContractError("an index code that does not exist");
}

namespace cpu {
namespace {

/// Up to 8 bytes at `offset` as a little-endian number; bytes past the end read as 0.
std::uint64_t load_word(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint64_t word = 0;
  if (offset + sizeof(word) <= bytes.size()) {
    std::memcpy(&word, bytes.data() + offset, sizeof(word));
  } else if (offset < bytes.size()) {
    std::memcpy(&word, bytes.data() + offset, bytes.size() - offset);
  }
  return word;
}

template <typename Stored>
void encode_coo(IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  std::byte* to = out.data();
  for (const Index index : indices) {
    const auto stored = static_cast<Stored>(index - range.begin);
    std::memcpy(to, &stored, sizeof(stored));
    to += sizeof(stored);
  }
}

template <typename Stored>
void decode_coo(IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices) {
  const std::byte* from = bytes.data();
  Index previous = range.begin - 1;
  for (Index& index : indices) {
    Stored stored = 0;
    std::memcpy(&stored, from, sizeof(stored));
    from += sizeof(stored);
    if (static_cast<std::uint64_t>(stored) >= static_cast<std::uint64_t>(range.size())) {
      throw CorruptDataError(
          fmt::format("COO code: index {} outside its range of {}", stored, range.size()));
    }
    index = range.begin + static_cast<Index>(stored);
    if (index <= previous) throw CorruptDataError("COO code: indices do not increase");
    previous = index;
  }
}

/// Calls found(bit) for each bit that is set, in increasing order; never more than `count` times.
/// @throws CorruptDataError if there are not exactly `count`
template <typename Found>
void for_each_bit(IndexCode code, std::span<const std::byte> bits, std::size_t count,
                  Found&& found) {
  std::size_t left = count;
  for (std::size_t offset = 0; offset < bits.size(); offset += 8) {
    for (std::uint64_t word = load_word(bits, offset); word != 0; word &= word - 1) {
      if (left == 0) {
        throw CorruptDataError(
            fmt::format("{} code: more than the {} indices announced", name_of(code), count));
      }
      --left;
      found(offset * 8 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }
  if (left != 0) {
    throw CorruptDataError(
        fmt::format("{} code: {} indices of {} announced", name_of(code), count - left, count));
  }
}

/// Appends numbers of a fixed number of bits to a byte string.
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

void encode_elias_fano(IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  if (indices.empty()) return;
  const auto layout = elias_fano::layout(static_cast<std::uint64_t>(range.size()), indices.size());
  const std::span<std::byte> high = out.first(layout.high_bytes());
  std::memset(high.data(), 0, high.size());
  const auto low_bits = static_cast<unsigned>(layout.low_bits);
  const std::uint64_t mask = low_mask(layout.low_bits);
  BitWriter low(out.data() + high.size());
  std::uint64_t ordinal = 0;
  for (const Index index : indices) {
    const auto value = static_cast<std::uint64_t>(index - range.begin);
    const std::uint64_t bit = (value >> low_bits) + ordinal++;
    high[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
    low.put(value & mask, layout.low_bits);
  }
  low.finish();
}

/// Reads numbers of a fixed number of bits one after another.
class BitReader {
 public:
  BitReader(std::span<const std::byte> bytes, int bits)
      : bytes_(bytes), bits_(static_cast<unsigned>(bits)), mask_(low_mask(bits)) {}
  std::uint64_t next() {
    const std::size_t offset = at_ / 8;
    const auto skipped = static_cast<unsigned>(at_ % 8);
    at_ += bits_;
    std::uint64_t number = load_word(bytes_, offset) >> skipped;
    // bits_ <= 62, and a word read at a byte boundary holds at least 57 bits from there on.
    if (skipped + bits_ > 64) number |= load_word(bytes_, offset + 8) << (64 - skipped);
    return number & mask_;
  }

 private:
  std::span<const std::byte> bytes_;
  unsigned bits_;
  std::uint64_t mask_;
  std::size_t at_ = 0;
};

void decode_elias_fano(IndexRange range, std::span<const std::byte> bytes,
                       std::span<Index> indices) {
  const auto layout = elias_fano::layout(static_cast<std::uint64_t>(range.size()), indices.size());
  BitReader low(bytes.subspan(layout.high_bytes()), layout.low_bits);
  Index* to = indices.data();
  std::uint64_t found = 0;
  std::uint64_t next = 0;  // the least that may follow
  bool increases = true;
  for_each_bit(IndexCode::elias_fano, bytes.first(layout.high_bytes()), indices.size(),
               [&](std::size_t bit) {
                 const std::uint64_t value =
                     (bit - found++) << static_cast<unsigned>(layout.low_bits) | low.next();
                 // Looked at once, at the end: no branch for each.
                 increases &= value >= next;
                 next = value + 1;
                 *to++ = range.begin + static_cast<Index>(value);
               });
  if (!increases) throw CorruptDataError("elias_fano code: indices do not increase");
  // The last is the greatest.
  if (next > static_cast<std::uint64_t>(range.size())) {
    throw CorruptDataError(
        fmt::format("elias_fano code: index {} outside its range of {}", next - 1, range.size()));
  }
}

void encode_bitmap(IndexRange range, std::span<const Index> indices, std::span<std::byte> out) {
  if (indices.empty()) return;
  std::memset(out.data(), 0, out.size());
  for (const Index index : indices) {
    const auto bit = static_cast<std::uint64_t>(index - range.begin);
    out[bit / 8] |= static_cast<std::byte>(1U << (bit % 8));
  }
}

void decode_bitmap(IndexRange range, std::span<const std::byte> bytes, std::span<Index> indices) {
  Index* to = indices.data();
  for_each_bit(IndexCode::bitmap, bytes, indices.size(),
               [&](std::size_t bit) { *to++ = range.begin + static_cast<Index>(bit); });
  if (!indices.empty() && indices.back() >= range.end) {
    throw CorruptDataError("bitmap code: a bit past the end of its range");
  }
}

}  // namespace

void encode(const Context&, IndexCode code, IndexRange range, std::span<const Index> indices,
            std::span<std::byte> out) {
  SPARSESYNC_EXPECT(static_cast<Index>(out.size()), ==,
                    encoded_bytes(code, range.size(), static_cast<Index>(indices.size())));
  if (code == IndexCode::all) {
    SPARSESYNC_EXPECT(static_cast<Index>(indices.size()), ==, range.size());
  } else if (code == IndexCode::elias_fano) {
    encode_elias_fano(range, indices, out);
  } else if (code == IndexCode::bitmap) {
    encode_bitmap(range, indices, out);
  } else if (coo_index_bytes(range.size()) == 4) {
    encode_coo<std::uint32_t>(range, indices, out);
  } else {
    encode_coo<std::uint64_t>(range, indices, out);
  }
}

void decode(const Context&, IndexCode code, IndexRange range, std::span<const std::byte> bytes,
            std::span<Index> indices) {
  const auto count = static_cast<Index>(indices.size());
  if (count > range.size() || (code == IndexCode::all && count < range.size()) ||
      static_cast<Index>(bytes.size()) != encoded_bytes(code, range.size(), count)) {
    throw CorruptDataError(fmt::format("{} code: {} bytes for {} indices in a range of {}",
                                       name_of(code), bytes.size(), count, range.size()));
  }
  if (code == IndexCode::all) {
    std::iota(indices.begin(), indices.end(), range.begin);
  } else if (code == IndexCode::elias_fano) {
    decode_elias_fano(range, bytes, indices);
  } else if (code == IndexCode::bitmap) {
    decode_bitmap(range, bytes, indices);
  } else if (coo_index_bytes(range.size()) == 4) {
    decode_coo<std::uint32_t>(range, bytes, indices);
  } else {
    decode_coo<std::uint64_t>(range, bytes, indices);
  }
}

}  // namespace cpu
}  // namespace sparsesync
