#include "schemes/message.h"

#include <fmt/format.h>

#include <limits>

#include "kernels/bits.h"
#include "kernels/error.h"
#include "kernels/locate.h"

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

/// Walks a message: calls on_code(i, offset, bytes) and on_values(i, offset, bytes); its size.
template <typename OnCode, typename OnValues>
std::int64_t walk(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                  OnCode&& on_code, OnValues&& on_values) {
  Index offset = static_cast<Index>(specs.size()) * kNumberBytes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    offset = round_up(offset, kCodeAlignment);
    const Index bytes = encoded_bytes(code_of(specs[i], counts[i].indices), specs[i].range.size(),
                                      counts[i].indices);
    on_code(i, offset, bytes);
    offset += bytes;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (counts[i].rows > 0) offset = round_up(offset, kValueAlignment);
    const Index bytes = counts[i].rows * specs[i].row_bytes;
    on_values(i, offset, bytes);
    offset += bytes;
  }
  return offset;
}

constexpr auto kIgnore = [](std::size_t, Index, Index) {};

template <typename Byte>
void fill_sections(std::span<const SectionSpec> specs, std::span<const SectionCounts> counts,
                   std::span<Byte> message, std::vector<BasicSection<Byte>>& sections) {
  sections.clear();
  const auto part = [&](Index offset, Index bytes) {
    return message.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  walk(
      specs, counts,
      [&](std::size_t i, Index offset, Index bytes) {
        sections.push_back(
            {counts[i], code_of(specs[i], counts[i].indices), part(offset, bytes), {}});
      },
      [&](std::size_t i, Index offset, Index bytes) { sections[i].values = part(offset, bytes); });
}

}  // namespace

SectionCounts crossing(const SectionSpec& spec, Index rows) {
  const Index all = spec.range.size();
  // In floating point: the bytes of a whole range may be beyond counting.
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
    // No code takes more than 16 bytes an index, and alignment at most 32 bytes a section.
    bytes += static_cast<double>(kNumberBytes) + 32 + 16 * static_cast<double>(spec.range.size()) +
             static_cast<double>(spec.most_rows) * static_cast<double>(spec.row_bytes);
  }
  return bytes < kMost ? static_cast<Index>(bytes) : std::numeric_limits<Index>::max();
}

void lay_out(const Context& context, std::span<const SectionSpec> specs,
             std::span<const SectionCounts> counts, std::span<std::byte> message,
             std::vector<Section>& sections) {
  place(context, std::as_bytes(counts), message.data());
  fill_sections(specs, counts, message, sections);
}

std::int64_t read_leading(const Context& context, std::span<const SectionSpec> specs,
                          std::span<const std::byte> bytes, std::vector<SectionCounts>& counts,
                          std::vector<ConstSection>& sections) {
  counts.resize(specs.size());
  const std::span<std::byte> numbers = std::as_writable_bytes(std::span(counts));
  if (bytes.size() < numbers.size()) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes: too few for its numbers", bytes.size()));
  }
  fetch(context, bytes.first(numbers.size()), numbers.data());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto [indices, rows] = counts[i];
    if (indices < 0 || indices > specs[i].range.size() || rows < 0 || rows > specs[i].most_rows) {
      throw CorruptDataError(fmt::format(
          "a message with {} indices in a range of {} and {} rows where {} are the most", indices,
          specs[i].range.size(), rows, specs[i].most_rows));
    }
  }
  const std::int64_t own = message_bytes(specs, counts);
  if (own > static_cast<Index>(bytes.size())) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes whose numbers say {}", bytes.size(), own));
  }
  fill_sections(specs, counts, bytes.first(static_cast<std::size_t>(own)), sections);
  return own;
}

void read_layout(const Context& context, std::span<const SectionSpec> specs,
                 std::span<const std::byte> message, std::vector<SectionCounts>& counts,
                 std::vector<ConstSection>& sections) {
  const std::int64_t bytes = read_leading(context, specs, message, counts, sections);
  if (bytes != static_cast<Index>(message.size())) {
    throw CorruptDataError(
        fmt::format("a message of {} bytes whose numbers say {}", message.size(), bytes));
  }
}

}  // namespace sparsesync
