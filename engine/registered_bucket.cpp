#include "engine/registered_bucket.h"

#include <utility>

#include "kernels/cast.h"
#include "kernels/locate.h"
#include "kernels/rows.h"

namespace sparsesync {

RegisteredBucket::RegisteredBucket(const Context& context, BucketSpec spec,
                                   const SchemeEntry& entry, Rank rank, int size,
                                   std::uint64_t seed)
    : context_(context),
      spec_(std::move(spec)),
      crossing_(on_wire(spec_)),
      spaces_(row_spaces(crossing_.tensors)),
      input_(context_, spec_),
      rank_(rank),
      size_(size),
      seed_(seed),
      chosen_(way_of(entry, spec_.options)),
      scheme_(entry.create({context_, &crossing_, rank, size, seed})),
      places_(spec_.tensors.size()),
      result_indices_(buffers<Index>(context_, places_.size())),
      widened_(buffers<std::byte>(context_, places_.size())),
      counts_(context_),
      observed_(spaces_.size()) {
  take_patterns();
  if (spec_.announce) announced_.emplace(BucketInput::without_values(context_, spec_));
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    for (const RowSpace::Member& member : spaces_[i].members) {
      places_[member.tensor] = {i, member.first_row};
    }
  }
}

void RegisteredBucket::take_patterns() {
  patterns_ = {spec_.announce ? scheme_->pattern(Phase::announce) : Pattern{},
               scheme_->pattern(Phase::reduce), scheme_->pattern(Phase::gather)};
}

void RegisteredBucket::change_scheme(const Way& chosen) {
  // The old one goes first: nobody should have to pay for both.
  scheme_.reset();
  BucketSpec crossing = crossing_;
  crossing.options = options_for(chosen, crossing.options);
  scheme_ = scheme_named(chosen.scheme).create({context_, &crossing, rank_, size_, seed_});
  chosen_ = chosen;
  take_patterns();
}

TensorResult RegisteredBucket::result(std::size_t tensor) {
  TensorResult result = crossed(tensor);
  const DType own = spec_.tensors[tensor].dtype;
  if (result.values.dtype != own) {
    result.values.data = widened_[tensor].data();
    result.values.dtype = own;
  }
  return result;
}

void RegisteredBucket::widen_result() {
  non_finite_ = 0;
  if (!spec_.options.wire && !spec_.count_non_finite) return;
  for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
    if (is_integer(spec_.tensors[i].dtype)) continue;  // they cross as they are, and are finite
    const ConstMatrix values = crossed(i).values;
    const Count count(counts_.reserve(2).data());
    count_non_finite(context_, values, count);
    non_finite_ += resolve(context_, count);
    if (values.dtype == spec_.tensors[i].dtype) continue;
    Matrix own{nullptr, spec_.tensors[i].dtype, values.rows, values.width};
    own.data = widened_[i].reserve(own.bytes()).data();
    cast(context_, values, own);
  }
}

/// The result in the type that it crossed as.
TensorResult RegisteredBucket::crossed(std::size_t tensor) {
  SPARSESYNC_EXPECT(tensor, <, spec_.tensors.size());
  const Place place = places_[tensor];
  const SpaceResult& space = scheme_->result()[place.space];
  const Index rows = spec_.tensors[tensor].rows;
  TensorResult result{space.layout, space.indices, space.values};
  if (space.layout == Gradient::Layout::dense) {
    result.values.data += place.first_row * space.values.row_bytes();
    result.values.rows = rows;
    return result;
  }
  if (spaces_[place.space].members.size() > 1) {
    const IndexRange found = places_in(
        context_, space.indices, {place.first_row, place.first_row + rows}, counts_.reserve(2));
    result.values.data += found.begin * space.values.row_bytes();
    result.values.rows = found.size();
    const std::span<Index> own = result_indices_[tensor].reserve(found.size());
    shift(context_, part_of(space.indices, found), -place.first_row, own);
    result.indices = own;
  }
  return result;
}

std::vector<SpaceChoice> RegisteredBucket::choices() const {
  const std::vector<SpaceChoice> of_spaces = scheme_->choices();
  std::vector<SpaceChoice> of_tensors;
  for (const Place& place : places_) of_tensors.push_back(of_spaces[place.space]);
  return of_tensors;
}

void RegisteredBucket::observe(Phase phase, std::int64_t index_bytes_sent) {
  index_bytes_sent_ += index_bytes_sent;
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    if (phase == Phase::reduce) {
      observed_[i].touched = input_.touched(i);
    } else if (phase == Phase::gather) {
      const SpaceResult& result = scheme_->result()[i];
      observed_[i].united = result.layout == Gradient::Layout::dense
                                ? scheme_->united(i).value_or(spaces_[i].rows)
                                : std::ssize(result.indices);
    }
  }
}

}  // namespace sparsesync
