#include "schemes/message/row_reduction.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "kernels/base/host_copy.h"
#include "kernels/rows/rows.h"

namespace sparsesync {

SumsOfRounds::SumsOfRounds(const Context& context, int rounds)
    : context_(context), joined_(context) {
  for (int round = 0; round < rounds; ++round) sums_.emplace_back(context);
}

SpaceResult SumsOfRounds::joined(const RowSpace& space) {
  const auto result_of = [&](const RowSums& sums) {
    return SpaceResult{Gradient::Layout::row_sparse,
                       sums.named(),
                       {sums.values.data(), space.dtype, sums.rows, space.width}};
  };
  if (sums_.size() == 1) return result_of(sums_.front());
  joined_.rows = 0;
  for (const RowSums& round : sums_) joined_.rows += round.rows;
  std::byte* indices = std::as_writable_bytes(joined_.indices.reserve(joined_.rows)).data();
  std::byte* values = joined_.values.reserve(joined_.rows * space.row_bytes()).data();
  for (const RowSums& round : sums_) {
    const std::span<const std::byte> named = std::as_bytes(round.named());
    const std::span<const std::byte> sums = round.values.first(round.rows * space.row_bytes());
    copy(context_, named, indices);
    copy(context_, sums, values);
    indices += named.size();
    values += sums.size();
  }
  return result_of(joined_);
}

void RowSummation::read(std::span<const SectionSpec> specs, std::span<const std::byte> message,
                        ReceivedRows& received) {
  if (read_leading(specs, message, received).bytes != std::ssize(message)) {
    throw CorruptDataError("a message with extra bytes at its end");
  }
}

MessageGather::Extent RowSummation::read_leading(std::span<const SectionSpec> specs,
                                                 std::span<const std::byte> bytes,
                                                 ReceivedRows& received) {
  const std::int64_t own =
      sparsesync::read_leading(context_, specs, bytes, counts_, received.sections);
  jobs_.clear();
  take_rows(specs, received);
  decode_all(context_, jobs_);
  return {own, index_bytes(specs, counts_)};
}

void RowSummation::read_all(std::span<const SectionSpec> specs,
                            std::span<const std::span<const std::byte>> messages,
                            std::span<ReceivedRows> received, KnownNumbers& known) {
  SPARSESYNC_EXPECT(messages.size(), ==, received.size());
  counts_.clear();
  for (const std::span<const std::byte> message : messages) {
    const std::optional<SectionCounts> numbers = numbers_of_bytes(specs, std::ssize(message));
    if (!numbers) break;
    counts_.push_back(*numbers);
  }
  const bool are_known = counts_.size() == messages.size();
  if (!are_known) known.fetch(specs.size(), messages, counts_);
  jobs_.clear();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::span<const SectionCounts> own =
        std::span(counts_).subspan(i * specs.size(), specs.size());
    take_layout(specs, own, messages[i], received[i].sections);
    if (are_known) known.expect(messages[i], own);
    take_rows(specs, received[i]);
  }
  decode_all(context_, jobs_);
}

void RowSummation::take_own(std::span<const SectionSpec> specs,
                            std::span<const SectionCounts> counts,
                            std::span<const std::byte> message, ReceivedRows& received) {
  take_layout(specs, counts, message, received.sections);
  jobs_.clear();
  take_rows(specs, received);
  decode_all(context_, jobs_);
}

/// Adds jobs that decode the indices of the sections.
void RowSummation::take_rows(std::span<const SectionSpec> specs, ReceivedRows& received) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ConstSection& section = received.sections[i];
    if (section.counts.indices != section.counts.rows) {
      throw CorruptDataError("a message whose indices and rows differ in number");
    }
    jobs_.push_back({section.code, specs[i].range, section.indices,
                     received.indices[i].reserve(section.counts.indices)});
  }
}

Index RowSummation::take_sets(std::span<const ReceivedRows> received, std::size_t space,
                              IndexRange range) {
  sets_.clear();
  Index total = 0;
  for (const ReceivedRows& rows : received) {
    sets_.push_back(rows.named(space));
    total += std::ssize(sets_.back());
  }
  return std::min(total, range.size());
}

void RowSummation::take_parts(std::span<const ReceivedRows> received, std::size_t space,
                              DType dtype, Index width) {
  parts_.clear();
  for (const ReceivedRows& rows : received) {
    const ConstSection& section = rows.sections[space];
    parts_.push_back(
        {rows.named(space), {section.values.data(), dtype, section.counts.rows, width}});
  }
}

Index RowSummation::unite(std::span<const ReceivedRows> received, std::size_t space,
                          IndexRange range, Buffer<Index>& united, KnownNumbers* known) {
  const Index room = take_sets(received, space, range);
  const Count count(count_.data());
  sparsesync::unite(context_, range, sets_, united.reserve(room), count, workspace_);
  if (known == nullptr) return resolve(context_, count);
  Index rows = 0;
  known->verify(std::array{std::as_bytes(std::span<const Index>(count_.first(1)))},
                std::as_writable_bytes(std::span(&rows, 1)));
  return rows;
}

void RowSummation::add_up(std::span<const ReceivedRows> received, std::size_t space,
                          std::span<const Index> united, double scale, Matrix sums) {
  take_parts(received, space, sums.dtype, sums.width);
  aggregate(context_, united, parts_, scale, sums, workspace_);
}

void RowSummation::sum_counted(std::span<const ReceivedRows> received, std::size_t space,
                               IndexRange range, DType dtype, Index width, double scale,
                               RowSums& sums, Count count) {
  sums.rows = take_sets(received, space, range);
  sparsesync::unite(context_, range, sets_, sums.indices.reserve(sums.rows), count, workspace_);
  // Avoids unused capacity, if the number of rows is available without a synchronization.
  if (fetches_at_once(context_)) sums.rows = resolve(context_, count);
  const std::span<std::byte> values = sums.values.reserve(sums.rows * width * element_bytes(dtype));
  take_parts(received, space, dtype, width);
  aggregate_counted(context_, sums.named(), count, parts_, scale,
                    {values.data(), dtype, sums.rows, width}, workspace_);
}

void RowSummation::sum(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
                       DType dtype, Index width, double scale, RowSums& sums, KnownNumbers* known) {
  sums.rows = unite(received, space, range, sums.indices, known);
  const std::span<std::byte> values = sums.values.reserve(sums.rows * width * element_bytes(dtype));
  add_up(received, space, sums.named(), scale, {values.data(), dtype, sums.rows, width});
}

}  // namespace sparsesync
