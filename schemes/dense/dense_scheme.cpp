#include "schemes/dense/dense_scheme.h"

#include "kernels/rows/rows.h"

namespace sparsesync {

DenseScheme::DenseScheme(const SchemeEnvironment& environment)
    : Scheme(environment),
      flat_sums_(flat_sums(spaces_)),
      flat_values_(flat_values(spaces_)),
      own_sums_(are_own_sums(spaces_)),
      sums_(context_),
      values_(context_) {
  // Clears the gaps between row spaces, because they are sent, too.
  fill_zero(context_, sums_.reserve_exactly(flat_sums_.bytes()));
  if (!own_sums_) fill_zero(context_, values_.reserve_exactly(flat_values_.bytes()));
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    const RowSpace& space = spaces_[i];
    const std::byte* const values = flat_values_.piece(i, all(), value_bytes()).data;
    results_[i] = {Gradient::Layout::dense, {}, {values, space.dtype, space.rows, space.width}};
  }
}

bool DenseScheme::list_owned(std::vector<OwnedPart>& parts) const {
  for (const Round round : Round::all(rounds_)) {
    const IndexRange own = chunk_of(rank_, round);
    for (std::size_t i = 0; i < spaces_.size(); ++i) {
      parts.push_back({i, as_const(flat_values_.piece(i, own, value_bytes()))});
    }
  }
  return true;
}

void DenseScheme::write_gradients(BucketInput& input) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    Matrix sums = flat_sums_.piece(i, all(), sums_.data());
    sums.rows = spaces_[i].rows;
    sums.width = spaces_[i].width;
    input.start_sums(i, sums);
  }
}

IndexRange DenseScheme::chunk_of(Rank owner, Round round) const {
  const Round within{owner.value, size_};
  return within.part_of(round.part_of(flat_sums_.elements()));
}

void DenseScheme::round_to_values(IndexRange elements, double scale) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    round_sums(context_, as_const(flat_sums_.piece(i, elements, sums_.data())), scale,
               flat_values_.piece(i, elements, value_bytes()));
  }
}

Work work_of_writing(const Workload& workload) {
  Work work;
  for (std::size_t i = 0; i < workload.spaces.size(); ++i) {
    const double touched = workload.statistics[i].touched_max;
    work += {.encoded_rows = touched,
             .encoded_bytes = touched * static_cast<double>(workload.spaces[i].row_bytes())};
  }
  return work;
}

}  // namespace sparsesync
