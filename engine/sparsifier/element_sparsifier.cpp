#include "engine/sparsifier/element_sparsifier.h"

#include "kernels/base/host_copy.h"
#include "kernels/rows/rows.h"

namespace sparsesync {

OfElements::OfElements(const Context& context, std::vector<TensorSpec> tensors,
                       const SparsifierOptions& options)
    : ResidualSparsifier(context, std::move(tensors), options),
      masks_(options.corrects_momentum && options.masks_momentum),
      cuts_(context),
      counts_(context) {
  const std::size_t count = this->tensors().size();
  cuts_.reserve_exactly(static_cast<Index>(count));
  counts_.reserve_exactly(static_cast<Index>(count));
  for (const TensorSpec& tensor : this->tensors()) {
    crossing_.push_back(
        {tensor.name, tensor.rows * tensor.width, 1, options.wire.value_or(tensor.dtype)});
    elements_.emplace_back(context);
  }
  taken_.assign(count, Gradient::empty());
  room_.resize(count);
  fetched_.resize(count);
}

Matrix OfElements::values_of(std::size_t tensor, Index count) {
  const DType dtype = crossing_[tensor].dtype;
  const Index bytes = count * element_bytes(dtype);
  return {elements_[tensor].values.reserve(bytes).data(), dtype, count, 1};
}

void OfElements::select(const SparsifierStep& step) {
  find_cuts(step, room_);
  const auto room_of = [&](std::size_t tensor) -> Taken {
    Elements& of = elements_[tensor];
    const Index most = room_[tensor];
    return {of.indices.reserve(most), values_of(tensor, most),
            masks_ ? of.velocities.reserve(most) : std::span<float>{}};
  };
  // Allocates for all tensors before any residual changes, so that a failure later is unlikely.
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) room_of(tensor);
  std::size_t taken_out = 0;
  try {
    for (; taken_out < tensors().size(); ++taken_out) {
      const Taken taken = room_of(taken_out);
      take_largest(context(), residual(taken_out), velocity(taken_out), cut(taken_out), taken,
                   Count(&counts()[taken_out]), not_finite_count());
    }
  } catch (...) {
    fetch_counts(taken_out);
    put_back();
    throw;
  }
  fetch_counts(taken_out);
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
    Elements& of = elements_[tensor];
    SPARSESYNC_EXPECT(of.count, <=, room_[tensor]);
    taken_[tensor] = Gradient::row_sparse(of.indices.first(of.count), of.values.data());
  }
}

void OfElements::fetch_counts(std::size_t taken_out) {
  fetch_numbers(context(), counts(), fetched_);
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
    elements_[tensor].count = tensor < taken_out ? fetched_[tensor] : 0;
  }
}

void OfElements::put_back() {
  for (std::size_t tensor = 0; tensor < tensors().size(); ++tensor) {
    Elements& of = elements_[tensor];
    const std::span<const Index> indices = of.indices.first(of.count);
    const auto one_wide = [](std::span<float> values) {
      return Matrix{reinterpret_cast<std::byte*>(values.data()), DType::f32, std::ssize(values), 1};
    };
    give_back_rows(context(), as_const(values_of(tensor, of.count)), indices,
                   one_wide(residual(tensor)));
    if (!masks_) continue;
    scatter_rows(context(), as_const(one_wide(of.velocities.first(of.count))), indices, 0,
                 one_wide(velocity(tensor)));
  }
}

}  // namespace sparsesync
