#include "schemes/own_rows.h"

#include "kernels/locate.h"
#include "kernels/rows.h"

namespace sparsesync {

OwnRows::OwnRows(const Context& context, std::span<const RowSpace> spaces)
    : context_(context),
      spaces_(spaces),
      located_(context),
      places_(context),
      bounds_(2 * spaces.size()) {
  located_.reserve_exactly(static_cast<Index>(bounds_.size()));
}

std::int64_t OwnRows::find(std::span<const SectionSpec> specs, BucketInput& input) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    locate(context_, input.coalesced(i).indices, specs[i].range, {located_.data() + 2 * i, 2});
  }
  fetch(context_, std::as_bytes(std::span(located_.data(), bounds_.size())),
        reinterpret_cast<std::byte*>(bounds_.data()));
  counts_.clear();
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const Index rows = bounds_[2 * i + 1] - bounds_[2 * i];
    counts_.push_back({rows, rows});
  }
  return message_bytes(specs, counts_);
}

void OwnRows::write(std::span<const SectionSpec> specs, BucketInput& input,
                    std::span<const DType> dtypes, std::span<std::byte> message) {
  lay_out(context_, specs, counts_, message, sections_);
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const RowSparse all = input.coalesced(i);
    const IndexRange bounds{bounds_[2 * i], bounds_[2 * i + 1]};
    const Section& section = sections_[i];
    encode(context_, section.code, specs[i].range, part_of(all.indices, bounds), section.indices);
    const ConstMatrix rows{all.values.data + bounds.begin * all.values.row_bytes(),
                           all.values.dtype, bounds.size(), all.values.width};
    if (dtypes[i] == rows.dtype) {
      copy(context_, {rows.data, static_cast<std::size_t>(rows.bytes())}, section.values.data());
      continue;
    }
    const std::span<Index> places = places_.reserve(bounds.size());
    number(context_, places);
    fill_zero(context_, section.values);
    add_rows(context_, rows, places, {section.values.data(), dtypes[i], rows.rows, rows.width});
  }
}

}  // namespace sparsesync
