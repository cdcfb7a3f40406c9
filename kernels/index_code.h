// Index codes: how an increasing set of indices crosses the wire. Sizes follow from numbers that
// both ends know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/bits.h"
#include "kernels/context.h"
#include "kernels/elias_fano.h"
#include "kernels/views.h"

namespace sparsesync {

/// `coo`: each index as a number. `elias_fano`: elias_fano.h. `bitmap`: bit i of the string (bits
/// count from the lowest of each byte on) says whether the range's index i is there; no bytes where
/// there is none.
/// `all`: every index of the range, in no bytes; of no other set.
enum class IndexCode : std::uint8_t { coo, elias_fano, bitmap, all };

/// Those that write any set; the first is taken where several are the cheapest.
inline constexpr std::array kIndexCodes{IndexCode::coo, IndexCode::elias_fano, IndexCode::bitmap};

/// The name in JSON and tables: "coo", "elias_fano", "bitmap", "all".
std::string_view name_of(IndexCode code);

/// Bytes of one COO index: 4, or 8 where 4 cannot name every index.
SPARSESYNC_HOST_DEVICE constexpr Index coo_index_bytes(Index universe) {
  return universe <= (Index{1} << 32) ? 4 : 8;
}

/// Bytes of a string of one bit for each index of the range.
SPARSESYNC_HOST_DEVICE constexpr Index bitmap_bytes(Index universe) {
  return ceil_div<Index>(universe, 8);
}

/// Bytes of `count` increasing indices in [0, universe), in closed form.
SPARSESYNC_HOST_DEVICE constexpr Index encoded_bytes(IndexCode code, Index universe, Index count) {
  switch (code) {
    case IndexCode::coo:
      return count * coo_index_bytes(universe);
    case IndexCode::bitmap:
      return count == 0 ? 0 : bitmap_bytes(universe);
    case IndexCode::all:
      return 0;
    case IndexCode::elias_fano:
      break;
  }
  return static_cast<Index>(
      elias_fano::layout(static_cast<std::uint64_t>(universe), static_cast<std::uint64_t>(count))
          .bytes());
}

/// The code with the fewest bytes for this count, in closed form; the first of them where they tie.
SPARSESYNC_HOST_DEVICE constexpr IndexCode cheapest_code(Index universe, Index count) {
  if (count == universe && count > 0) return IndexCode::all;
  const auto bytes = [&](IndexCode code) { return encoded_bytes(code, universe, count); };
  const IndexCode listed =
      bytes(IndexCode::elias_fano) < bytes(IndexCode::coo) ? IndexCode::elias_fano : IndexCode::coo;
  return bytes(IndexCode::bitmap) < bytes(listed) ? IndexCode::bitmap : listed;
}

namespace cpu {
/// Writes `indices` in `code`. Does not synchronize the stream.
/// @param range    what the indices are known to lie in: range.size() is the code's universe
/// @param indices  increasing strictly, all in `range` (undefined otherwise); for `all` as many as
///                 the range has (a broken contract otherwise)
/// @param out      encoded_bytes(code, range.size(), indices.size()) bytes, of any alignment
void encode(const Context& context, IndexCode code, IndexRange range,
            std::span<const Index> indices, std::span<std::byte> out);
}  // namespace cpu
inline constexpr Operation encode{cpu::encode};

namespace cpu {
/// Reads what encode() wrote. The bytes are not trusted.
/// @param indices  as many as were written
/// @throws CorruptDataError if `bytes` is not exactly such a code: a wrong size, an index outside
///         `range`, indices that do not increase strictly, another number of them
void decode(const Context& context, IndexCode code, IndexRange range,
            std::span<const std::byte> bytes, std::span<Index> indices);
}  // namespace cpu
inline constexpr Operation decode{cpu::decode};

}  // namespace sparsesync
