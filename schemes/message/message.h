// The layout of a row-sparse message: which rows, and their values, for several row spaces at once.
//
// For each row space two numbers of 8 bytes: how many indices and how many rows of values there
// are. Then, for each row space, its index code from a multiple of 8 bytes on; then, for each row
// space, its values from a multiple of 16 bytes on. All else follows from these numbers and from
// what both ends know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/indices/index_code.h"

namespace sparsesync {

/// What both ends know of one row space's part before a message comes.
struct SectionSpec {
  IndexRange range;               // of the indices
  Index most_rows = 0;            // rows of values that there can be
  Index row_bytes = 0;            // of one row of values
  std::optional<IndexCode> code;  // the cheapest one if none is given
  bool densifies = false;         // all rows of the range cross where that takes fewer bytes
};

/// How much there is of one row space: as it stands in a message.
struct SectionCounts {
  Index indices = 0;
  Index rows = 0;
};

/// One row space's part of a message. A view.
template <typename Byte>
struct BasicSection {
  SectionCounts counts;
  IndexCode code = IndexCode::coo;
  std::span<Byte> indices;
  std::span<Byte> values;
};
using Section = BasicSection<std::byte>;
using ConstSection = BasicSection<const std::byte>;

/// What crosses where so many rows of the range are to: they, or all rows of the range with zeros
/// between, whose indices need no bytes.
SectionCounts crossing(const SectionSpec& spec, Index rows);

/// Bytes of a message.
std::int64_t message_bytes(std::span<const SectionSpec> specs,
                           std::span<const SectionCounts> counts);

/// The most bytes that a message can have that agrees with `specs`; std::int64_t's maximum at most.
std::int64_t largest_message_bytes(std::span<const SectionSpec> specs);

/// Writes the numbers of a message and says where its codes and values go. Does not synchronize the
/// stream.
/// @param message   message_bytes(specs, counts) bytes in the context's memory
/// @param sections  receives one for each row space; keeps its memory
void lay_out(const Context& context, std::span<const SectionSpec> specs,
             std::span<const SectionCounts> counts, std::span<std::byte> message,
             std::vector<Section>& sections);

/// The numbers at the head of a message of so many row spaces.
/// @throws CorruptDataError if it is too short for them
std::span<const std::byte> numbers_in(std::span<const std::byte> message, std::size_t spaces);

/// The same as lay_out() where the numbers are yet to be written. Does not synchronize the stream.
void lay_out_unnumbered(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                        std::span<std::byte> message, std::vector<Section>& sections);

/// The numbers of a message in which each index has a row, where they follow from its bytes: of one
/// row space whose rows are not too narrow, and not of as many bytes as all rows of the range take.
/// @throws CorruptDataError if no numbers give so many bytes
std::optional<SectionCounts> numbers_of_bytes(std::span<const SectionSpec> specs,
                                              std::int64_t bytes);

/// As read_layout(), with numbers that are known. Does not synchronize the stream.
/// @throws CorruptDataError unless they are possible and give exactly the message's bytes
void take_layout(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                 std::span<const std::byte> message, std::vector<ConstSection>& sections);

/// As read_head(), with numbers that are known. Does not synchronize the stream.
/// @throws CorruptDataError unless they are possible and give exactly the head's bytes
void take_head(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
               std::span<const std::byte> head, std::vector<ConstSection>& sections);

/// Reads the numbers of a message. It is not trusted. Synchronizes the stream.
/// @param counts    receives the numbers of each row space
/// @param sections  receives one for each row space; a view of `message`
/// @throws CorruptDataError unless the numbers are possible and give exactly the message's bytes
void read_layout(const Context& context, std::span<const SectionSpec> specs,
                 std::span<const std::byte> message, std::vector<SectionCounts>& counts,
                 std::vector<ConstSection>& sections);

/// The same where other bytes may follow the message. Synchronizes the stream.
/// @return the message's own
/// @throws CorruptDataError unless the numbers are possible and the message lies in `bytes`
std::int64_t read_leading(const Context& context, std::span<const SectionSpec> specs,
                          std::span<const std::byte> bytes, std::vector<SectionCounts>& counts,
                          std::vector<ConstSection>& sections);

// ---- A message may cross in two pieces: a head, which is all before the first value, and a body.

/// Bytes of the head.
std::int64_t head_bytes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts);

/// As read_layout() does it, but of the head alone: the sections have no values yet. Synchronizes
/// the stream.
/// @throws CorruptDataError unless the numbers are possible and give exactly the head's bytes
void read_head(const Context& context, std::span<const SectionSpec> specs,
               std::span<const std::byte> head, std::vector<SectionCounts>& counts,
               std::vector<ConstSection>& sections);

/// Gives sections that were read from the head their values, views of `body`.
/// @throws CorruptDataError unless it has exactly the bytes that the head says
void read_body(std::span<const SectionSpec> specs, std::span<const std::byte> body,
               std::vector<ConstSection>& sections);

/// Bytes of a message and its header before the first index code.
double overhead_bytes(std::size_t spaces);

/// Bytes of a message that are not values.
std::int64_t index_bytes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts);

}  // namespace sparsesync
