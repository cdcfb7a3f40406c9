#include "engine/sparsifier/residual_sparsifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/bits.h"
#include "kernels/base/host_copy.h"
#include "kernels/base/threads.h"
#include "kernels/rows/rows.h"
#include "kernels/topk/norms.h"

namespace sparsesync {
namespace {

// Limit for the elements of all tensors together. The bytes of the residual, rounded up to whole
// chunks, then fit into an Index.
constexpr Index kMostElements = std::numeric_limits<Index>::max() / 64;

void validate(std::span<const TensorSpec> tensors, const SparsifierOptions& options) {
  Index elements = 0;
  for (const TensorSpec& tensor : tensors) {
    if (sum_dtype(tensor.dtype) != DType::f32) {
      throw InputError(
          fmt::format("tensor '{}' is {}: a sparsifier keeps its residual in f32 and supports f32, "
                      "f16 and bf16; leave this tensor dense",
                      tensor.name, name_of(tensor.dtype)));
    }
    if (tensor.rows < 0 || tensor.width < 0) {
      throw InputError(fmt::format("tensor '{}': {} rows of width {}: both must be at least 0",
                                   tensor.name, tensor.rows, tensor.width));
    }
    Index here = 0;
    if (__builtin_mul_overflow(tensor.rows, tensor.width, &here) ||
        here > kMostElements - elements) {
      throw InputError(
          fmt::format("tensor '{}': {} rows of width {} are more elements than can be counted",
                      tensor.name, tensor.rows, tensor.width));
    }
    elements += here;
  }
  if (tensors.empty() || elements == 0)
    throw InputError("a sparsifier needs tensors with elements: these have no elements");
  if (options.wire && sum_dtype(*options.wire) != DType::f32) {
    throw InputError(fmt::format("wire type {}: use f32, f16 or bf16", name_of(*options.wire)));
  }
  if (options.clip && !(*options.clip > 0)) {
    throw InputError(fmt::format("clip norm {}: use a value above 0", *options.clip));
  }
  if (options.selecting == Selecting::threshold &&
      !(options.level > 0 && std::isfinite(options.level))) {
    throw InputError(fmt::format("threshold level {}: use a finite value above 0", options.level));
  }
  if (options.selecting == Selecting::chunks && (options.chunk < 1 || options.chunk > elements)) {
    throw InputError(
        fmt::format("chunks of {} elements: use 1 to {}, the number of elements of all tensors",
                    options.chunk, elements));
  }
}

/// Returns the offset of each tensor in the concatenation of all tensors, and the end of the last
/// one.
std::vector<Index> begins_of(std::span<const TensorSpec> tensors) {
  std::vector<Index> begins{0};
  for (const TensorSpec& tensor : tensors) {
    begins.push_back(begins.back() + tensor.rows * tensor.width);
  }
  return begins;
}

}  // namespace

void validate(const SparsifierStep& step) {
  if (!(step.share > 0 && step.share <= 1)) {
    throw InputError(fmt::format("share {}: use a value above 0 and at most 1", step.share));
  }
  if (!(step.scale > 0 && std::isfinite(step.scale))) {
    throw InputError(fmt::format("loss scale {}: use a finite value above 0", step.scale));
  }
  if (!(step.momentum >= 0 && std::isfinite(step.momentum))) {
    throw InputError(fmt::format("momentum {}: use a finite value of at least 0", step.momentum));
  }
}

ResidualSparsifier::ResidualSparsifier(const Context& context, std::vector<TensorSpec> tensors,
                                       SparsifierOptions options, Index round_to)
    : context_(context),
      tensors_(std::move(tensors)),
      options_(options),
      begins_(begins_of(tensors_)),
      padded_(round_up(begins_.back(), round_to)),
      residual_(context),
      velocity_(context),
      not_finite_place_(context),
      squares_(context) {
  fill_zero(context_, std::as_writable_bytes(residual_.reserve_exactly(padded_)));
  if (options_.corrects_momentum) {
    fill_zero(context_, std::as_writable_bytes(velocity_.reserve_exactly(begins_.back())));
  }
  not_finite_place_.reserve_exactly(1);
  if (options_.clip) squares_.reserve_exactly(std::ssize(tensors_));
  factors_.assign(tensors_.size(), 1.0F);
  fetched_.resize(tensors_.size());
}

std::span<float> ResidualSparsifier::residual(std::size_t tensor) {
  return part_of(residual(), {begins_[tensor], begins_[tensor + 1]});
}

std::span<float> ResidualSparsifier::velocity() {
  return velocity_.first(options_.corrects_momentum ? begins_.back() : 0);
}

std::span<float> ResidualSparsifier::velocity(std::size_t tensor) {
  if (!options_.corrects_momentum) return {};
  return part_of(velocity(), {begins_[tensor], begins_[tensor + 1]});
}

void ResidualSparsifier::choose(std::span<const Index>) {
  throw ContractError("this sparsifier selects elements, not chunks");
}

ConstMatrix ResidualSparsifier::gradient_of(std::size_t tensor, const std::byte* data) const {
  const TensorSpec& spec = tensors_[tensor];
  return {data, spec.dtype, spec.rows, spec.width};
}

Velocity ResidualSparsifier::velocity_of(std::size_t tensor, const SparsifierStep& step) {
  return {velocity(tensor), step.momentum, step.nesterov};
}

void ResidualSparsifier::rescale(float scale) {
  if (scale == scale_) return;
  const double ratio = static_cast<double>(scale) / static_cast<double>(scale_);
  for (const std::span<float> owed : {residual(), velocity()}) {
    const Matrix all{std::as_writable_bytes(owed).data(), DType::f32, std::ssize(owed), 1};
    round_sums(context_, as_const(all), ratio, all);
  }
  scale_ = scale;
}

void ResidualSparsifier::find_factors(std::span<const std::byte* const> gradients) {
  std::ranges::fill(factors_, 1.0F);
  if (!options_.clip) return;
  const std::span<double> squares = squares_.first(std::ssize(tensors_));
  fill_zero(context_, std::as_writable_bytes(squares));
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (gradients[tensor] == nullptr) continue;
    add_squares(context_, gradient_of(tensor, gradients[tensor]), &squares[tensor]);
  }
  fetch(context_, std::as_bytes(squares), std::as_writable_bytes(std::span(fetched_)).data());
  const double most = *options_.clip * static_cast<double>(scale_);
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const double norm = std::sqrt(fetched_[tensor]);
    // A non-finite norm cannot scale the gradient. Its finite elements are then added unscaled, and
    // the other elements are counted.
    if (std::isfinite(norm) && norm > most) factors_[tensor] = static_cast<float>(most / norm);
  }
}

std::span<const Gradient> ResidualSparsifier::take(std::span<const std::byte* const> gradients,
                                                   const SparsifierStep& step) {
  SPARSESYNC_EXPECT(gradients.size(), ==, tensors_.size());
  validate(step);
  const DefaultFloatEnvironment default_modes;
  has_taken_ = false;
  std::ranges::fill(taken_, Gradient::empty());  // the memory that they view may be reallocated
  last_ = step;
  rescale(step.scale);
  find_factors(gradients);
  fill_zero(context_, std::as_writable_bytes(not_finite_place_.first(1)));
  if (!options_.keeps_rest) fill_zero(context_, std::as_writable_bytes(residual()));
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (gradients[tensor] == nullptr) continue;
    add_gradient(context_, gradient_of(tensor, gradients[tensor]), factors_[tensor],
                 velocity_of(tensor, step), residual(tensor), not_finite_count());
  }
  try {
    select(step);
  } catch (...) {
    remove(gradients);
    throw;
  }
  has_taken_ = true;
  not_finite_ = resolve(context_, not_finite_count());
  return taken_;
}

void ResidualSparsifier::give_back() {
  SPARSESYNC_EXPECT(has_taken_, ==, true);
  const DefaultFloatEnvironment default_modes;
  put_back();
  has_taken_ = false;
}

void ResidualSparsifier::undo(std::span<const std::byte* const> gradients) {
  SPARSESYNC_EXPECT(gradients.size(), ==, tensors_.size());
  const DefaultFloatEnvironment default_modes;
  give_back();
  remove(gradients);
}

void ResidualSparsifier::remove(std::span<const std::byte* const> gradients) {
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (gradients[tensor] == nullptr) continue;
    remove_gradient(context_, gradient_of(tensor, gradients[tensor]), factors_[tensor],
                    velocity_of(tensor, last_), residual(tensor));
  }
}

std::unique_ptr<Sparsifier> make_sparsifier(const Context& context, std::vector<TensorSpec> tensors,
                                            const SparsifierOptions& options) {
  validate(tensors, options);
  switch (options.selecting) {
    case Selecting::top_k:
      return make_top_k(context, std::move(tensors), options);
    case Selecting::threshold:
      return make_threshold(context, std::move(tensors), options);
    case Selecting::chunks:
      return make_coarse_grained(context, std::move(tensors), options);
  }
  throw ContractError("unknown kind of sparsifier");
}

Index count_of_share(double share, Index all) {
  if (!std::isfinite(share) || all < 0) {
    throw InputError(
        fmt::format("share {} of {}: use a finite share of a count of at least 0", share, all));
  }
  if (share >= 1) return all;
  const double count = std::ceil(share * static_cast<double>(all) * (1 - 1e-12));
  return count <= 0 ? 0 : std::min(static_cast<Index>(count), all);
}

std::vector<Index> largest_chunks(std::span<const double> norms, Index count) {
  std::vector<Index> chunks(norms.size());
  std::iota(chunks.begin(), chunks.end(), Index{0});
  const auto size_of = [&](Index chunk) {
    const double norm = norms[static_cast<std::size_t>(chunk)];
    return std::isnan(norm) ? HUGE_VAL : norm;
  };
  const auto first = [&](Index a, Index b) {
    return size_of(a) != size_of(b) ? size_of(a) > size_of(b) : a < b;
  };
  const auto end = chunks.begin() + std::clamp<Index>(count, 0, std::ssize(chunks));
  std::partial_sort(chunks.begin(), end, chunks.end(), first);
  chunks.erase(end, chunks.end());
  std::ranges::sort(chunks);
  return chunks;
}

std::string_view name_of(Selecting selecting) {
  switch (selecting) {
    case Selecting::top_k:
      return "top_k";
    case Selecting::threshold:
      return "threshold";
    case Selecting::chunks:
      return "chunks";
  }
  throw ContractError("unknown kind of sparsifier");
}

}  // namespace sparsesync
