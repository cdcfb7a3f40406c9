#include "schemes/message/local_rows.h"

#include <algorithm>

#include "kernels/indices/locate.h"
#include "kernels/rows/rows.h"
#include "schemes/bucket_input.h"

namespace sparsesync {

OwnRows::OwnRows(const Context& context, std::span<const RowSpace> spaces)
    : context_(context), spaces_(spaces), located_(context), bounds_(2 * spaces.size()) {
  located_.reserve_exactly(std::ssize(bounds_));
}

std::int64_t OwnRows::find(std::span<const SectionSpec> specs, BucketInput& input) {
  bool all = true;  // whether all rows belong to this round
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    bounds_[2 * i] = 0;
    bounds_[2 * i + 1] = std::ssize(input.coalesced(i).indices);
    all = all && specs[i].range == IndexRange{0, spaces_[i].rows};
  }
  if (!all) locate_rows(specs, input);
  counts_.clear();
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const Index rows = bounds_[2 * i + 1] - bounds_[2 * i];
    counts_.push_back({rows, std::min(rows, specs[i].most_rows)});
  }
  return message_bytes(specs, counts_);
}

void OwnRows::locate_rows(std::span<const SectionSpec> specs, BucketInput& input) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    locate(context_, input.coalesced(i).indices, specs[i].range, {located_.data() + 2 * i, 2});
  }
  fetch_numbers(context_, {located_.data(), bounds_.size()}, bounds_);
}

void OwnRows::write(std::span<const SectionSpec> specs, BucketInput& input,
                    std::span<const DType> dtypes, std::span<std::byte> message) {
  lay_out(context_, specs, counts_, message, sections_);
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const RowSparse all = input.coalesced(i);
    const IndexRange bounds{bounds_[2 * i], bounds_[2 * i + 1]};
    const Section& section = sections_[i];
    encode(context_, section.code, specs[i].range, part_of(all.indices, bounds), section.indices);
    if (section.counts.rows == 0) continue;
    const ConstMatrix rows{all.values.data + bounds.begin * all.values.row_bytes(),
                           all.values.dtype, bounds.size(), all.values.width};
    if (dtypes[i] == rows.dtype) {
      copy(context_, rows.as_bytes(), section.values.data());
      continue;
    }
    start_sums(context_, rows, {section.values.data(), dtypes[i], rows.rows, rows.width});
  }
}

}  // namespace sparsesync
