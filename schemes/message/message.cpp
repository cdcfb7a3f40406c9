#include "schemes/message/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/bits.h"
#include "kernels/base/host_copy.h"
#include "sparsesync/errors.h"
#include "sparsesync/transport.h"

namespace sparsesync {
namespace {

constexpr Index kCodeAlignment = 8;
constexpr Index kValueAlignment = 16;
constexpr Index kNumberBytes = sizeof(SectionCounts);
static_assert(kNumberBytes == 16);

IndexCode code_of(const SectionSpec& spec, Index indices) {
  if (spec.densifies && indices > 0 && indices == spec.range.size()) return IndexCode::all;
  return spec.code ? *spec.code : cheapest_code(spec.range.size(), indices);
}

/// Calls on_values(i, offset, bytes) for the values of each row space, starting at `offset`.
/// @param specs      [row space]
/// @param offset     offset of the first values
/// @param rows_of    rows_of(i): number of rows of row space i
/// @param on_values  the function to call
/// @return the end of the values
template <typename RowsOf, typename OnValues>
std::int64_t walk_values(std::span<const SectionSpec> specs, Index offset, RowsOf&& rows_of,
                         OnValues&& on_values) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Index rows = rows_of(i);
    if (rows > 0) offset = round_up(offset, kValueAlignment);
    const Index bytes = rows * specs[i].row_bytes;
    on_values(i, offset, bytes);
    offset += bytes;
  }
  return offset;
}

/// Calls on_code(i, offset, bytes) and on_values(i, offset, bytes) for each row space of a message.
/// Returns the size of the message.
template <typename OnCode, typename OnValues>
std::int64_t walk(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                  OnCode&& on_code, OnValues&& on_values) {
  Index offset = std::ssize(specs) * kNumberBytes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    offset = round_up(offset, kCodeAlignment);
    const Index bytes = encoded_bytes(code_of(specs[i], counts[i].indices), specs[i].range.size(),
                                      counts[i].indices);
    on_code(i, offset, bytes);
    offset += bytes;
  }
  return walk_values(
      specs, offset, [&](std::size_t i) { return counts[i].rows; }, on_values);
}

constexpr auto kIgnore = [](std::size_t, Index, Index) {};

template <typename Byte>
std::span<Byte> part_at(std::span<Byte> message, Index offset, Index bytes) {
  return message.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

/// Fills sections without values.
template <typename Byte>
void fill_codes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                std::span<Byte> head, std::vector<BasicSection<Byte>>& sections) {
  sections.clear();
  const auto add = [&](std::size_t i, Index offset, Index bytes) {
    const IndexCode code = code_of(specs[i], counts[i].indices);
    sections.push_back({counts[i], code, part_at(head, offset, bytes), {}});
  };
  walk(specs, counts, add, kIgnore);
}

template <typename Byte>
void fill_sections(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                   std::span<Byte> message, std::vector<BasicSection<Byte>>& sections) {
  fill_codes(specs, counts, message, sections);
  walk(specs, counts, kIgnore, [&](std::size_t i, Index offset, Index bytes) {
    sections[i].values = part_at(message, offset, bytes);
  });
}

}  // namespace

SectionCounts crossing(const SectionSpec& spec, Index rows) {
  const Index all = spec.range.size();
  // Computed in floating point, because the size of a whole range may overflow 64 bits.
  const auto bytes = [&](Index count) {
    return static_cast<double>(count) * static_cast<double>(spec.row_bytes) +
           static_cast<double>(encoded_bytes(code_of(spec, count), all, count));
  };
  return spec.densifies && bytes(all) < bytes(rows) ? SectionCounts{all, all}
                                                    : SectionCounts{rows, rows};
}

std::int64_t message_bytes(std::span<const SectionSpec> specs,
                           std::span<const SectionCounts> counts) {
  return walk(specs, counts, kIgnore, kIgnore);
}

double overhead_bytes(std::size_t spaces) {
  return static_cast<double>(kHeaderBytes) +
         static_cast<double>(kNumberBytes) * static_cast<double>(spaces);
}

std::int64_t index_bytes(std::span<const SectionSpec> specs,
                         std::span<const SectionCounts> counts) {
  Index values = 0;
  const std::int64_t bytes =
      walk(specs, counts, kIgnore, [&](std::size_t, Index, Index part) { values += part; });
  return bytes - values;
}

std::int64_t largest_message_bytes(std::span<const SectionSpec> specs) {
  constexpr double kMost = 0x1p62;
  double bytes = 0;
  for (const SectionSpec& spec : specs) {
    // No code takes more than 16 bytes per index. Alignment adds at most 32 bytes per section.
    bytes += static_cast<double>(kNumberBytes) + 32 + 16 * static_cast<double>(spec.range.size()) +
             static_cast<double>(spec.most_rows) * static_cast<double>(spec.row_bytes);
  }
  return bytes < kMost ? static_cast<Index>(bytes) : std::numeric_limits<Index>::max();
}

void lay_out(const Context& context, std::span<const SectionSpec> specs,
             std::span<const SectionCounts> counts, std::span<std::byte> message,
             std::vector<Section>& sections) {
  upload(context, std::as_bytes(counts), message.data());
  lay_out_unnumbered(specs, counts, message, sections);
}

void lay_out_unnumbered(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                        std::span<std::byte> message, std::vector<Section>& sections) {
  fill_sections(specs, counts, message, sections);
}

std::span<const std::byte> numbers_in(std::span<const std::byte> message, std::size_t spaces) {
  const std::size_t bytes = spaces * sizeof(SectionCounts);
  if (message.size() < bytes) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes is too short for its counts", message.size()));
  }
  return message.first(bytes);
}

std::optional<SectionCounts> numbers_of_bytes(std::span<const SectionSpec> specs,
                                              std::int64_t bytes) {
  // With rows of this width, more rows always need more bytes: an additional index shortens a code
  // by less.
  constexpr Index kWideRow = 32;
  if (specs.size() != 1 || specs[0].densifies || specs[0].row_bytes < kWideRow) return std::nullopt;
  const auto bytes_of = [&](Index rows) {
    const std::array counts{SectionCounts{rows, rows}};
    return message_bytes(specs, counts);
  };
  const Index most = std::min(specs[0].range.size(), specs[0].most_rows);
  // All rows of a range need no code, so they may take as many bytes as fewer rows do.
  if (!specs[0].code && most == specs[0].range.size() && bytes == bytes_of(most)) {
    return std::nullopt;
  }
  Index rows = 0;
  Index more = std::min(specs[0].code ? most : std::min(most, specs[0].range.size() - 1),
                        bytes / specs[0].row_bytes);
  while (more > 0) {  // binary search for the smallest number of rows with enough bytes
    const Index half = more / 2;
    if (bytes_of(rows + half) < bytes) {
      rows += half + 1;
      more -= half + 1;
    } else {
      more = half;
    }
  }
  if (bytes_of(rows) != bytes) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes: no number of rows has this size", bytes));
  }
  return SectionCounts{rows, rows};
}

namespace {

/// Verifies that counts are in range.
/// @throws CorruptDataError
void expect_possible(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto [indices, rows] = counts[i];
    if (indices < 0 || indices > specs[i].range.size() || rows < 0 || rows > specs[i].most_rows) {
      throw CorruptDataError(
          fmt::format("a message with {} indices in a range of {}, and {} rows of at most {}",
                      indices, specs[i].range.size(), rows, specs[i].most_rows));
    }
  }
}

/// Fetches and verifies the counts of a message.
/// @throws CorruptDataError
void read_numbers(const Context& context, std::span<const SectionSpec> specs,
                  std::span<const std::byte> message, std::vector<SectionCounts>& counts) {
  counts.resize(specs.size());
  fetch(context, numbers_in(message, specs.size()),
        std::as_writable_bytes(std::span(counts)).data());
  expect_possible(specs, counts);
}

}  // namespace

void take_layout(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                 std::span<const std::byte> message, std::vector<ConstSection>& sections) {
  expect_possible(specs, counts);
  const std::int64_t bytes = message_bytes(specs, counts);
  if (bytes != std::ssize(message)) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes whose counts give {}", message.size(), bytes));
  }
  fill_sections(specs, counts, message, sections);
}

void take_head(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
               std::span<const std::byte> head, std::vector<ConstSection>& sections) {
  expect_possible(specs, counts);
  const std::int64_t bytes = head_bytes(specs, counts);
  if (bytes != std::ssize(head)) {
    throw CorruptDataError(
        fmt::format("a head of {} bytes whose counts give {}", head.size(), bytes));
  }
  fill_codes(specs, counts, head, sections);
}

std::int64_t read_leading(const Context& context, std::span<const SectionSpec> specs,
                          std::span<const std::byte> bytes, std::vector<SectionCounts>& counts,
                          std::vector<ConstSection>& sections) {
  read_numbers(context, specs, bytes, counts);
  const std::int64_t own = message_bytes(specs, counts);
  if (own > std::ssize(bytes)) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes whose counts give {}", bytes.size(), own));
  }
  fill_sections(specs, counts, bytes.first(static_cast<std::size_t>(own)), sections);
  return own;
}

void read_layout(const Context& context, std::span<const SectionSpec> specs,
                 std::span<const std::byte> message, std::vector<SectionCounts>& counts,
                 std::vector<ConstSection>& sections) {
  read_numbers(context, specs, message, counts);
  take_layout(specs, counts, message, sections);
}

std::int64_t head_bytes(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts) {
  std::optional<Index> first;
  const auto note = [&](std::size_t, Index offset, Index bytes) {
    if (bytes > 0 && !first) first = offset;
  };
  const std::int64_t all = walk(specs, counts, kIgnore, note);
  return first.value_or(all);
}

void read_head(const Context& context, std::span<const SectionSpec> specs,
               std::span<const std::byte> head, std::vector<SectionCounts>& counts,
               std::vector<ConstSection>& sections) {
  read_numbers(context, specs, head, counts);
  take_head(specs, counts, head, sections);
}

void read_body(std::span<const SectionSpec> specs, std::span<const std::byte> body,
               std::vector<ConstSection>& sections) {
  const auto rows_of = [&](std::size_t i) { return sections[i].counts.rows; };
  // Offset 0, because the head ends where the first values are aligned.
  const Index bytes = walk_values(specs, 0, rows_of, kIgnore);
  if (bytes != std::ssize(body)) {
    throw CorruptDataError(
        fmt::format("a body of {} bytes whose counts give {}", body.size(), bytes));
  }
  walk_values(specs, 0, rows_of, [&](std::size_t i, Index offset, Index part) {
    sections[i].values = part_at(body, offset, part);
  });
}

}  // namespace sparsesync
