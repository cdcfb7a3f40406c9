// Fuzz targets for index codes and messages from other workers.
#include <array>
#include <cstring>
#include <stdexcept>

#include "kernels/base/error.h"
#include "kernels/indices/index_code.h"
#include "schemes/message/message.h"
#include "sparsesync/memory.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace sparsesync::fuzz {
namespace {

constexpr Index kMostIndices = 1 << 16;

void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void expect_set(std::span<const Index> indices, IndexRange range) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    expect(indices[i] >= range.begin && indices[i] < range.end, "an index outside its range");
    expect(i == 0 || indices[i - 1] < indices[i], "indices that do not increase");
  }
}

template <typename T>
void append(Bytes& bytes, T value) {
  std::array<std::byte, sizeof(T)> raw{};
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

/// Returns row spaces of a message, with any valid sizes.
std::vector<SectionSpec> specs_of(Input& input) {
  std::vector<SectionSpec> specs(1 + input.below(3));
  for (SectionSpec& spec : specs) {
    const auto begin = static_cast<Index>(input.take<std::uint32_t>());
    const auto kind = input.take<std::uint8_t>();
    const Index size = (kind & 1U) != 0 ? Index{1} + static_cast<Index>(input.below(300))
                                        : Index{1} << (1 + input.below(40));
    spec.range = {begin, begin + size};
    spec.most_rows = static_cast<Index>(input.take<std::uint16_t>());
    spec.row_bytes = 1 + static_cast<Index>(input.below(512));
    if ((kind & 2U) != 0) spec.code = kIndexCodes[input.below(kIndexCodes.size())];
    spec.densifies = (kind & 4U) != 0;
  }
  return specs;
}

void expect_inside(std::span<const ConstSection> sections, std::span<const std::byte> message) {
  const auto is_inside = [&](std::span<const std::byte> part) {
    return part.empty() || (part.data() >= message.data() &&
                            part.data() + part.size() <= message.data() + message.size());
  };
  for (const ConstSection& section : sections) {
    expect(is_inside(section.indices) && is_inside(section.values),
           "a section outside the message");
  }
}

}  // namespace

void read_index_codes(std::span<const std::byte> bytes) {
  Input input(bytes);
  const auto code = static_cast<IndexCode>(input.below(kIndexCodes.size() + 1));
  const auto begin = static_cast<Index>(input.take<std::uint32_t>());
  const auto size = static_cast<Index>(input.take<std::uint64_t>() >> (16 + input.below(48)));
  const IndexRange range{begin, begin + size};
  std::vector<Index> indices(input.below(kMostIndices));
  HostMemory memory;
  const Context context(memory);
  try {
    decode(context, code, range, input.rest(), indices);
  } catch (const CorruptDataError&) {
    return;
  }
  expect_set(indices, range);
  Bytes again(input.rest().size());
  encode(context, code, range, indices, again);
  std::vector<Index> read_again(indices.size());
  decode(context, code, range, again, read_again);
  expect(read_again == indices, "a set that is read as another one");
}

std::vector<Bytes> index_codes() {
  HostMemory memory;
  const Context context(memory);
  std::vector<Bytes> seeds;
  for (const IndexCode code : kIndexCodes) {
    for (const Index count : {Index{0}, Index{1}, Index{7}, Index{100}}) {
      Bytes& seed = seeds.emplace_back();
      append(seed, static_cast<std::uint16_t>(code));
      append(seed, std::uint32_t{5});
      append(seed, std::uint64_t{1000} << 16U);
      append(seed, std::uint16_t{0});
      append(seed, static_cast<std::uint16_t>(count));
      std::vector<Index> indices(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = 5 + 9 * static_cast<Index>(i);
      Bytes encoded(static_cast<std::size_t>(encoded_bytes(code, 1000, count)));
      encode(context, code, {5, 1005}, indices, encoded);
      seed.insert(seed.end(), encoded.begin(), encoded.end());
    }
  }
  return seeds;
}

void read_message(std::span<const std::byte> bytes) {
  Input input(bytes);
  const std::vector<SectionSpec> specs = specs_of(input);
  const std::span<const std::byte> rest = input.rest();
  // A separate buffer, so that AddressSanitizer finds reads past its end.
  const Bytes message(rest.begin(), rest.end());
  HostMemory memory;
  const Context context(memory);
  std::vector<SectionCounts> counts;
  std::vector<ConstSection> sections;
  try {
    read_layout(context, specs, message, counts, sections);
    expect_inside(sections, message);
    expect(message_bytes(specs, counts) == std::ssize(message), "a message of another size");
    take_layout(specs, counts, message, sections);
    expect_inside(sections, message);
    const auto head = static_cast<std::size_t>(head_bytes(specs, counts));
    read_head(context, specs, std::span(message).first(head), counts, sections);
    read_body(specs, std::span(message).subspan(head), sections);
    expect_inside(sections, message);
  } catch (const CorruptDataError&) {
  }
  try {
    const std::int64_t own = read_leading(context, specs, message, counts, sections);
    expect(own >= 0 && own <= std::ssize(message), "a message that is longer than its bytes");
    expect_inside(sections, message);
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const ConstSection& section = sections[i];
      if (section.counts.indices > kMostIndices) continue;
      std::vector<Index> indices(static_cast<std::size_t>(section.counts.indices));
      decode(context, section.code, specs[i].range, section.indices, indices);
      expect_set(indices, specs[i].range);
    }
  } catch (const CorruptDataError&) {
  }
  try {
    static_cast<void>(numbers_of_bytes(specs, std::ssize(message)));
  } catch (const CorruptDataError&) {
  }
}

std::vector<Bytes> messages() {
  HostMemory memory;
  const Context context(memory);
  std::vector<Bytes> seeds;
  for (const unsigned kind : {1U, 3U, 5U, 0U}) {
    Bytes& seed = seeds.emplace_back();
    append(seed, std::uint16_t{0});  // one row space
    append(seed, std::uint32_t{0});
    append(seed, static_cast<std::uint8_t>(kind));
    append(seed, std::uint16_t{199});
    append(seed, std::uint16_t{100});
    append(seed, std::uint16_t{15});
    if ((kind & 2U) != 0) append(seed, std::uint16_t{0});
    Input input(seed);
    const std::vector<SectionSpec> specs = specs_of(input);
    const std::vector<SectionCounts> counts{{3, 3}};
    Bytes message(static_cast<std::size_t>(message_bytes(specs, counts)));
    std::vector<Section> sections;
    lay_out(context, specs, counts, message, sections);
    std::vector<Index> indices{2, 3, 50};
    encode(context, sections[0].code, specs[0].range, indices, sections[0].indices);
    seed.insert(seed.end(), message.begin(), message.end());
  }
  return seeds;
}

}  // namespace sparsesync::fuzz
