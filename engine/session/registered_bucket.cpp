#include "engine/session/registered_bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/indices/locate.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/rows.h"
#include "kernels/topk/norms.h"

namespace sparsesync {

namespace {

/// Returns the spec for the first scheme: dtypes on the wire, and the initial number of rounds.
BucketSpec crossing_at_first(const BucketSpec& spec) {
  BucketSpec crossing = on_wire(spec);
  crossing.rounds = spec.rounds.value_or(1);
  return crossing;
}

}  // namespace

std::string squares_problem(const BucketSpec& spec, Index tensors) {
  if (tensors < 0 || tensors > std::ssize(spec.tensors)) {
    return fmt::format("bucket '{}' has {} tensors, not {}", spec.name, spec.tensors.size(),
                       tensors);
  }
  const std::vector<TensorSpec> crossing = on_wire(spec).tensors;
  const std::span<const TensorSpec> squared(crossing.data(), static_cast<std::size_t>(tensors));
  for (const TensorSpec& tensor : squared) {
    if (is_integer(tensor.dtype))
      return fmt::format("tensor '{}' has an integer dtype", tensor.name);
  }
  for (const TensorSpec& other : std::span(crossing).subspan(squared.size())) {
    const auto alike = [&](const TensorSpec& tensor) {
      return tensor.dtype == other.dtype && tensor.width == other.width;
    };
    if (std::any_of(squared.begin(), squared.end(), alike)) {
      return fmt::format(
          "tensor '{}' has the dtype and the width of a squared tensor: square it too, or change "
          "its width",
          other.name);
    }
  }
  return {};
}

RegisteredBucket::RegisteredBucket(const Context& context, BucketSpec spec,
                                   const SchemeEntry& entry, Rank rank, int size,
                                   std::uint64_t seed)
    : context_(context),
      spec_(std::move(spec)),
      crossing_(crossing_at_first(spec_)),
      spaces_(row_spaces(crossing_.tensors)),
      input_(context_, spec_),
      rank_(rank),
      size_(size),
      seed_(seed),
      chosen_(variant_of(entry, spec_.options)),
      scheme_(create(entry, crossing_)),
      last_word_(spreading_word(rank_, size_)),
      space_of_(spec_.tensors.size()),
      result_indices_(buffers<Index>(context_, space_of_.size())),
      widened_(buffers<std::byte>(context_, space_of_.size())),
      results_(space_of_.size()),
      counts_(context_),
      observed_(spaces_.size()) {
  take_patterns();
  if (spec_.announce) announced_.emplace(BucketInput::without_values(context_, spec_));
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    for (const RowSpace::Member& member : spaces_[i].members) {
      space_of_[member.tensor] = i;
    }
  }
}

std::unique_ptr<Scheme> RegisteredBucket::create(const SchemeEntry& entry,
                                                 const BucketSpec& crossing) const {
  const bool more_rounds_may_help = !spec_.rounds && rounds() < kMostRounds;
  return entry.create({context_, &crossing, rank_, size_, seed_, more_rounds_may_help});
}

void RegisteredBucket::take_patterns() {
  patterns_ = {spec_.announce ? scheme_->pattern(Phase::announce) : Pattern{},
               scheme_->pattern(Phase::reduce), scheme_->pattern(Phase::gather)};
}

std::vector<Phase> RegisteredBucket::phases_to(Phase last) const {
  std::vector<Phase> phases;
  if (spec_.announce) phases.push_back(Phase::announce);
  if (last != Phase::announce) phases.push_back(Phase::reduce);
  if (last == Phase::gather) phases.push_back(Phase::gather);
  return phases;
}

void RegisteredBucket::keep_gradients(Phase phase, std::span<const Gradient> gradients,
                                      GradientSource* source) {
  gradients_[static_cast<std::size_t>(phase)].assign(gradients.begin(), gradients.end());
  if (begins_with(phase) || phase == Phase::reduce) source_ = source;
}

std::span<const Gradient> RegisteredBucket::gradients(Phase phase, Stopwatch* stopwatch) {
  std::vector<Gradient>& kept = gradients_[static_cast<std::size_t>(phase)];
  if (phase == Phase::reduce && source_ != nullptr) {
    const StopwatchPause pause(stopwatch, false);
    const std::span<const Gradient> given = source_->gradients();
    kept.assign(given.begin(), given.end());
    source_ = nullptr;
  }
  return kept;
}

void RegisteredBucket::change_rounds(int rounds) {
  crossing_.rounds = rounds;
  change_scheme(chosen_);
  if (adapted_to_) scheme_->adapt(*adapted_to_);
}

void RegisteredBucket::adapt(const Statistics& statistics) {
  adapted_to_ = statistics;
  scheme_->adapt(statistics);
}

void RegisteredBucket::change_scheme(const SchemeVariant& chosen) {
  // Frees the old scheme first, so that memory for only one scheme is needed.
  scheme_.reset();
  BucketSpec crossing = crossing_;
  crossing.options = options_for(chosen, crossing.options);
  scheme_ = create(scheme_named(chosen.scheme), crossing);
  chosen_ = chosen;
  take_patterns();
}

void RegisteredBucket::take_results() {
  find_tensors();
  widen_results();
}

/// Finds each tensor's rows in the results of the row spaces.
void RegisteredBucket::find_tensors() {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const SpaceResult& result = scheme_->result()[i];
    const std::vector<RowSpace::Member>& members = spaces_[i].members;
    if (members.size() == 1) {
      results_[members.front().tensor] = {result.layout, result.indices, result.values};
    } else if (result.layout == Gradient::Layout::dense) {
      for (const RowSpace::Member& member : members) {
        ConstMatrix values = result.values;
        values.data += member.first_row * values.row_bytes();
        values.rows = spec_.tensors[member.tensor].rows;
        results_[member.tensor] = {result.layout, {}, values};
      }
    } else {
      find_members(result, members);
    }
  }
}

void RegisteredBucket::find_members(const SpaceResult& result,
                                    std::span<const RowSpace::Member> members) {
  const std::span<Index> counts = counts_.reserve(2 * std::ssize(members));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Index first = members[i].first_row;
    locate(context_, result.indices, {first, first + spec_.tensors[members[i].tensor].rows},
           counts.subspan(2 * i, 2));
  }
  bounds_.resize(counts.size());
  fetch_numbers(context_, counts, bounds_);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const IndexRange found{bounds_[2 * i], bounds_[2 * i + 1]};
    ConstMatrix values = result.values;
    values.data += found.begin * values.row_bytes();
    values.rows = found.size();
    const std::span<Index> own = result_indices_[members[i].tensor].reserve(found.size());
    shift(context_, part_of(result.indices, found), -members[i].first_row, own);
    results_[members[i].tensor] = {result.layout, own, values};
  }
}

/// Counts non-finite values, and casts values of the wire type to the tensors' dtypes.
void RegisteredBucket::widen_results() {
  non_finite_ = 0;
  if (!spec_.options.wire && !spec_.count_non_finite) return;
  const std::span<Index> counts = counts_.reserve(std::ssize(results_));
  fill_zero(context_, std::as_writable_bytes(counts));
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const DType own = spec_.tensors[i].dtype;
    if (is_integer(own)) continue;  // sent unchanged, and always finite
    ConstMatrix& values = results_[i].values;
    count_non_finite(context_, values, Count(counts.data() + i));
    if (values.dtype == own) continue;
    Matrix widened{nullptr, own, values.rows, values.width};
    widened.data = widened_[i].reserve(widened.bytes()).data();
    cast(context_, values, widened);
    values = as_const(widened);
  }
  bounds_.resize(counts.size());
  fetch_numbers(context_, counts, bounds_);
  non_finite_ = std::accumulate(bounds_.begin(), bounds_.end(), Index{0});
}

void RegisteredBucket::keep_squares(std::size_t tensors, double* sum) {
  const std::string problem = squares_problem(spec_, static_cast<Index>(tensors));
  if (!problem.empty()) throw ContractError("keep_squares: " + problem);
  std::vector<bool> is_squared(spaces_.size());
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) is_squared[space_of_[tensor]] = true;
  is_squared_ = std::move(is_squared);
  squares_ = sum;
  has_squares_ = false;
}

void RegisteredBucket::note_squares() {
  if (squares_ == nullptr) return;
  owned_.clear();
  has_squares_ = scheme_->list_owned(owned_);
  fill_zero(context_, {reinterpret_cast<std::byte*>(squares_), sizeof(*squares_)});
  for (const OwnedPart& part : owned_) {
    if (is_squared_[part.space]) add_squares(context_, part.values, squares_);
  }
}

std::vector<SpaceChoice> RegisteredBucket::choices() const {
  const std::vector<SpaceChoice> of_spaces = scheme_->choices();
  std::vector<SpaceChoice> of_tensors;
  for (const std::size_t space : space_of_) of_tensors.push_back(of_spaces[space]);
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
