// Index codes: how an increasing set of indices crosses the wire. Sizes follow from numbers that
// both ends know.
//
// A code is a type with a name and bytes(universe, count); what encodes and decodes it on a CPU has
// a file of its own in kernels/cpu/index_codes/. All codes are listed here and nowhere else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/bits.h"
#include "kernels/base/context.h"
#include "kernels/base/views.h"
#include "kernels/indices/elias_fano.h"

namespace sparsesync {

/// Bytes of one COO index: 4, or 8 where 4 cannot name every index.
SPARSESYNC_HOST_DEVICE constexpr Index coo_index_bytes(Index universe) {
  return universe <= (Index{1} << 32) ? 4 : 8;
}

/// Each index as a number, counted from the begin of its range, little-endian.
struct Coo {
  static constexpr const char* name = "coo";
  /// Of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return count * coo_index_bytes(universe);
  }
};

/// Bit i of a string (bits count from the lowest of each byte on) says whether the range's index i
/// is there; no bytes where none is.
struct Bitmap {
  static constexpr const char* name = "bitmap";
  /// Of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return count == 0 ? 0 : ceil_div<Index>(universe, 8);
  }
};

/// Every index of the range, in no bytes. No other set can be written so.
struct All {
  static constexpr const char* name = "all";
  /// Of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index, Index) { return 0; }
};

/// The codes that write any set, and last `all`.
enum class IndexCode : std::uint8_t { coo, elias_fano, bitmap, all };

/// Those that write any set; the first is taken where several are the cheapest.
inline constexpr std::array kIndexCodes{IndexCode::coo, IndexCode::elias_fano, IndexCode::bitmap};
static_assert(kIndexCodes.size() == static_cast<std::size_t>(IndexCode::all));

/// Calls `body` with the type of `code`.
template <typename Body>
SPARSESYNC_HOST_DEVICE constexpr decltype(auto) for_index_code(IndexCode code, Body&& body) {
  switch (code) {
    case IndexCode::coo:
      return body(Coo{});
    case IndexCode::elias_fano:
      return body(EliasFano{});
    case IndexCode::bitmap:
      return body(Bitmap{});
    case IndexCode::all:
      break;
  }
  return body(All{});
}

/// The name in JSON and tables: "coo", "elias_fano", ...
std::string_view name_of(IndexCode code);

/// Bytes of `count` increasing indices in [0, universe), in closed form.
SPARSESYNC_HOST_DEVICE constexpr Index encoded_bytes(IndexCode code, Index universe, Index count) {
  return for_index_code(code, [&](auto type) { return decltype(type)::bytes(universe, count); });
}

/// The code with the fewest bytes for this count, in closed form; the first of them where they tie.
SPARSESYNC_HOST_DEVICE constexpr IndexCode cheapest_code(Index universe, Index count) {
  if (count == universe && count > 0) return IndexCode::all;
  auto cheapest = IndexCode{};
  Index fewest = encoded_bytes(cheapest, universe, count);
  // By number: a device has no kIndexCodes.
  for (int number = 1; number < static_cast<int>(IndexCode::all); ++number) {
    const auto code = static_cast<IndexCode>(number);
    const Index bytes = encoded_bytes(code, universe, count);
    if (bytes < fewest) {
      cheapest = code;
      fewest = bytes;
    }
  }
  return cheapest;
}

namespace detail {
/// What both devices' encode() checks first: the sizes.
/// @param count  of indices
/// @param bytes  of room
/// @throws ContractError
void expect_room(IndexCode code, IndexRange range, Index count, Index bytes);

/// The same of decode().
/// @throws CorruptDataError
void expect_bytes(IndexCode code, IndexRange range, Index count, Index bytes);
}  // namespace detail

/// What encode() is given.
struct EncodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const Index> indices;
  std::span<std::byte> out;
};

/// What decode() is given.
struct DecodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const std::byte> bytes;
  std::span<Index> indices;
};

namespace cpu {
/// Writes `indices` in `code`. Does not synchronize the stream.
/// @param range    what the indices are known to lie in: range.size() is the code's universe
/// @param indices  increasing strictly, all in `range`
/// @param out      encoded_bytes(code, range.size(), indices.size()) bytes, of any alignment
/// @pre `indices` are as said (undefined otherwise); for `all` as many as the range has
///      (ContractError)
void encode(const Context& context, IndexCode code, IndexRange range,
            std::span<const Index> indices, std::span<std::byte> out);

/// Reads what encode() wrote. The bytes are not trusted. Does not synchronize the stream.
/// @param indices  as many as were written
/// @throws CorruptDataError if `bytes` is not exactly such a code: a wrong size, an index outside
///         `range`, indices that do not increase strictly, another number of them
void decode(const Context& context, IndexCode code, IndexRange range,
            std::span<const std::byte> bytes, std::span<Index> indices);

/// encode() of each job: of the messages of a phase each is small. Does not synchronize the stream.
/// @param jobs  no output overlaps what another one reads or writes
/// @pre as encode()
void encode_all(const Context& context, std::span<const EncodeJob> jobs);

/// decode() of each job. Does not synchronize the stream.
/// @param jobs  no output overlaps what another one reads or writes
/// @throws CorruptDataError as decode(); where a size is wrong, before anything is written
void decode_all(const Context& context, std::span<const DecodeJob> jobs);
}  // namespace cpu

SPARSESYNC_OPERATION(encode);
SPARSESYNC_OPERATION(decode);
SPARSESYNC_OPERATION(encode_all);
SPARSESYNC_OPERATION(decode_all);

}  // namespace sparsesync
