// The layout of a message of row-sparse data: the touched rows and their values, for several row
// spaces.
//
// 1. For each row space two counts of 8 bytes each: the number of indices and the number of rows of
//   values.
// 2. For each row space its index code, aligned to 8 bytes.
// 3. For each row space its values, aligned to 16 bytes.
//
// All offsets follow from the counts and from what both workers know (SectionSpec).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/views.h"
#include "kernels/indices/index_code.h"

namespace sparsesync {

/// Properties of one row space's section that both workers know before a message is sent.
struct SectionSpec {
  IndexRange range;     // range of the indices
  Index most_rows = 0;  // largest valid number of rows of values
  Index row_bytes = 0;  // bytes of one row of values
  /// Nothing: the shortest code for each message.
  std::optional<IndexCode> code;
  bool densifies = false;  // whether all rows of the range are sent if that is smaller
};

/// The counts of one row space, as a message contains them.
struct SectionCounts {
  Index indices = 0;
  Index rows = 0;
};

/// One row space's section of a message. A view.
template <typename Byte>
struct BasicSection {
  SectionCounts counts;
  IndexCode code = IndexCode::coo;
  std::span<Byte> indices;
  std::span<Byte> values;
};
using Section = BasicSection<std::byte>;
using ConstSection = BasicSection<const std::byte>;

/// Returns the counts of a section for `rows` touched rows of the range. These are the touched
/// rows, or all rows of the range with zeros in between, which need no index bytes.
SectionCounts crossing(const SectionSpec& spec, Index rows);

/// Returns the size of a message in bytes.
std::int64_t message_bytes(std::span<const SectionSpec> specs,
                           std::span<const SectionCounts> counts);

/// Returns the largest size of a message that agrees with `specs`, at most std::int64_t's maximum.
std::int64_t largest_message_bytes(std::span<const SectionSpec> specs);

/// Writes the counts of a message, and returns views of its sections.
/// @param context   the context of the message
/// @param specs     [row space]
/// @param counts    [row space]
/// @param message   message_bytes(specs, counts) bytes in the context's memory
/// @param sections  receives one section per row space; its memory is reused
void lay_out(const Context& context, std::span<const SectionSpec> specs,
             std::span<const SectionCounts> counts, std::span<std::byte> message,
             std::vector<Section>& sections);

/// Returns the counts at the start of a message, as bytes.
/// @throws CorruptDataError if the message is too short for the counts of `spaces` row spaces
std::span<const std::byte> numbers_in(std::span<const std::byte> message, std::size_t spaces);

/// Does the same as lay_out() without writing the counts.
void lay_out_unnumbered(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                        std::span<std::byte> message, std::vector<Section>& sections);

/// Derives the counts of a message from its size, if each index has a row of values. This is
/// possible for one row space with wide rows, unless all rows of the range take equally many bytes.
/// @throws CorruptDataError if no counts give a message of this size
std::optional<SectionCounts> numbers_of_bytes(std::span<const SectionSpec> specs,
                                              std::int64_t bytes);

/// Does the same as read_layout() for known counts, without synchronizing the stream.
/// @throws CorruptDataError if the counts are invalid or do not give the message's size
void take_layout(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                 std::span<const std::byte> message, std::vector<ConstSection>& sections);

/// Does the same as read_head() for known counts, without synchronizing the stream.
/// @throws CorruptDataError if the counts are invalid or do not give the head's size
void take_head(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
               std::span<const std::byte> head, std::vector<ConstSection>& sections);

/// Reads and validates the counts of a message. Synchronizes the stream.
/// @param context   the context of the message
/// @param specs     [row space]
/// @param message   untrusted bytes
/// @param counts    receives the counts of each row space
/// @param sections  receives one section per row space, views of `message`
/// @throws CorruptDataError if the counts are invalid or do not give the message's size
void read_layout(const Context& context, std::span<const SectionSpec> specs,
                 std::span<const std::byte> message, std::vector<SectionCounts>& counts,
                 std::vector<ConstSection>& sections);

/// Reads a message that other bytes may follow. Synchronizes the stream.
/// @return the size of the message in bytes
/// @throws CorruptDataError if the counts are invalid or the message is longer than `bytes`
std::int64_t read_leading(const Context& context, std::span<const SectionSpec> specs,
                          std::span<const std::byte> bytes, std::vector<SectionCounts>& counts,
                          std::vector<ConstSection>& sections);

// ---- A message may be sent in two pieces: the head, up to the first value, and the body.

/// Returns the size of the head in bytes.
std::int64_t head_bytes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts);

/// Does the same as read_layout() for a head. The sections have no values yet. Synchronizes the
/// stream.
/// @throws CorruptDataError if the counts are invalid or do not give the head's size
void read_head(const Context& context, std::span<const SectionSpec> specs,
               std::span<const std::byte> head, std::vector<SectionCounts>& counts,
               std::vector<ConstSection>& sections);

/// Adds the values, views of `body`, to sections that were read from the head.
/// @throws CorruptDataError if the body does not have the size given by the head
void read_body(std::span<const SectionSpec> specs, std::span<const std::byte> body,
               std::vector<ConstSection>& sections);

/// Returns the bytes of the header and the counts of a message.
double overhead_bytes(std::size_t spaces);

/// Returns the bytes of a message other than values.
std::int64_t index_bytes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts);

}  // namespace sparsesync
