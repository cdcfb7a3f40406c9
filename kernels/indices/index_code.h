// Index codes: encodings of an increasing set of indices in messages. The encoded size follows from
// numbers that both ends know.
//
// A code is a type with a name and bytes(universe, count). Its CPU encoder and decoder have a
// separate file in kernels/indices/. This header is the only list of all codes.
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

/// Returns the bytes per COO index: 4, or 8 if 4 bytes cannot represent every index.
SPARSESYNC_HOST_DEVICE constexpr Index coo_index_bytes(Index universe) {
  return universe <= (Index{1} << 32) ? 4 : 8;
}

/// Coordinate list: each index as a little-endian number, relative to the start of the range.
struct Coo {
  static constexpr const char* name = "coo";
  /// Returns the size in bytes of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return count * coo_index_bytes(universe);
  }
};

/// A bit string in which bit i is set if index i of the range is present. Bits are numbered from
/// the lowest bit of each byte. An empty set takes no bytes.
struct Bitmap {
  static constexpr const char* name = "bitmap";
  /// Returns the size in bytes of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index universe, Index count) {
    return count == 0 ? 0 : ceil_div<Index>(universe, 8);
  }
};

/// The complete range, in no bytes. It cannot encode any other set.
struct All {
  static constexpr const char* name = "all";
  /// Returns the size in bytes of `count` indices in [0, universe).
  SPARSESYNC_HOST_DEVICE static constexpr Index bytes(Index, Index) { return 0; }
};

/// Codes for any set, followed by `all`.
enum class IndexCode : std::uint8_t { coo, elias_fano, bitmap, all };

/// Codes for any set. Of equally cheap codes, the first is used.
inline constexpr std::array kIndexCodes{IndexCode::coo, IndexCode::elias_fano, IndexCode::bitmap};
static_assert(kIndexCodes.size() == static_cast<std::size_t>(IndexCode::all));

/// Calls `body` with an object of the type of `code`.
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

/// Returns the name in JSON and tables: "coo", "elias_fano", ...
std::string_view name_of(IndexCode code);

/// Returns the size in bytes of `count` increasing indices in [0, universe), in closed form.
SPARSESYNC_HOST_DEVICE constexpr Index encoded_bytes(IndexCode code, Index universe, Index count) {
  return for_index_code(code, [&](auto type) { return decltype(type)::bytes(universe, count); });
}

/// Returns the code with the fewest bytes for this count, in closed form. Ties go to the first
/// code.
SPARSESYNC_HOST_DEVICE constexpr IndexCode cheapest_code(Index universe, Index count) {
  if (count == universe && count > 0) return IndexCode::all;
  auto cheapest = IndexCode{};
  Index fewest = encoded_bytes(cheapest, universe, count);
  // Loop over numbers, because device code cannot access kIndexCodes.
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
/// Checks the sizes for encode(), for both devices.
/// @param count  number of indices
/// @param bytes  capacity of the output
/// @throws ContractError
void expect_room(IndexCode code, IndexRange range, Index count, Index bytes);

/// Checks the sizes for decode(), for both devices.
/// @throws CorruptDataError
void expect_bytes(IndexCode code, IndexRange range, Index count, Index bytes);
}  // namespace detail

/// Arguments of encode().
struct EncodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const Index> indices;
  std::span<std::byte> out;
};

/// Arguments of decode().
struct DecodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const std::byte> bytes;
  std::span<Index> indices;
};

namespace cpu {
/// Encodes `indices` with `code`. Does not synchronize the stream.
/// @param range    range that contains the indices; range.size() is the universe of the code
/// @param indices  strictly increasing, all in `range`
/// @param out      encoded_bytes(code, range.size(), indices.size()) bytes, any alignment
/// @pre `indices` meet these conditions (otherwise undefined). For `all`, there are range.size()
///      indices (otherwise ContractError).
void encode(const Context& context, IndexCode code, IndexRange range,
            std::span<const Index> indices, std::span<std::byte> out);

/// Decodes the output of encode(). The bytes are not trusted. Does not synchronize the stream.
/// @param indices  as many elements as were encoded
/// @throws CorruptDataError if `bytes` is not a valid code of this size: wrong size, wrong number
///         of indices, an index outside `range`, or indices that do not increase strictly
void decode(const Context& context, IndexCode code, IndexRange range,
            std::span<const std::byte> bytes, std::span<Index> indices);

/// Runs encode() for each job, because the messages of a phase are small. Does not synchronize the
/// stream.
/// @param jobs  no output overlaps memory that another job reads or writes
/// @pre those of encode()
void encode_all(const Context& context, std::span<const EncodeJob> jobs);

/// Runs decode() for each job. Does not synchronize the stream.
/// @param jobs  no output overlaps memory that another job reads or writes
/// @throws CorruptDataError like decode(); for a wrong size, before anything is written
void decode_all(const Context& context, std::span<const DecodeJob> jobs);
}  // namespace cpu

SPARSESYNC_OPERATION(encode);
SPARSESYNC_OPERATION(decode);
SPARSESYNC_OPERATION(encode_all);
SPARSESYNC_OPERATION(decode_all);

}  // namespace sparsesync
