#include "schemes/row_sums.h"

#include <algorithm>

#include "kernels/error.h"

namespace sparsesync {

void RowSummation::read(std::span<const SectionSpec> specs, std::span<const std::byte> message,
                        ReceivedRows& received) {
  read_layout(context_, specs, message, counts_, received.sections);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ConstSection& section = received.sections[i];
    if (section.counts.indices != section.counts.rows) {
      throw CorruptDataError("a message whose indices and rows differ in number");
    }
    decode(context_, section.code, specs[i].range, section.indices,
           received.indices[i].reserve(section.counts.indices));
  }
}

void RowSummation::sum(std::span<const ReceivedRows> received, std::size_t space, IndexRange range,
                       DType dtype, Index width, double scale, RowSums& sums) {
  sets_.clear();
  parts_.clear();
  Index total = 0;
  for (const ReceivedRows& rows : received) {
    const ConstSection& section = rows.sections[space];
    sets_.emplace_back(rows.indices[space].data(), static_cast<std::size_t>(section.counts.rows));
    parts_.push_back({sets_.back(), {section.values.data(), dtype, section.counts.rows, width}});
    total += section.counts.rows;
  }
  const std::span<Index> united = sums.indices.reserve(std::min(total, range.size()));
  const Count count(count_.data());
  unite(context_, range, sets_, united, count, workspace_);
  sums.rows = resolve(context_, count);
  const std::span<std::byte> values = sums.values.reserve(sums.rows * width * element_bytes(dtype));
  aggregate(context_, united.first(static_cast<std::size_t>(sums.rows)), parts_, scale,
            {values.data(), dtype, sums.rows, width}, workspace_);
}

}  // namespace sparsesync
