#include "schemes/bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/base/error.h"

namespace sparsesync {
namespace {

// Leaves a margin, so that sums of a few byte counts still fit into 64 bits.
constexpr Index kMostBytes = std::numeric_limits<Index>::max() / 64;

void validate_wire(const BucketSpec& spec, const TensorSpec& tensor) {
  if (!spec.options.wire) return;
  const DType wire = *spec.options.wire;
  const auto told = [&](std::string_view what) {
    return InputError(fmt::format("bucket '{}', tensor '{}': {} on the wire: {}", spec.name,
                                  tensor.name, name_of(wire), what));
  };
  if (wire != DType::f32 && wire != DType::f16 && wire != DType::bf16) {
    throw told("use f32, f16 or bf16");
  }
  if (is_integer(tensor.dtype)) {
    throw told(fmt::format("its {} values are never converted: omit the wire type",
                           name_of(tensor.dtype)));
  }
  const bool fits = wire == tensor.dtype || element_bytes(wire) < element_bytes(tensor.dtype);
  if (!fits) {
    throw told(fmt::format("not narrower than its {}: omit the wire type", name_of(tensor.dtype)));
  }
}

}  // namespace

BucketSpec on_wire(BucketSpec spec) {
  if (!spec.options.wire) return spec;
  for (TensorSpec& tensor : spec.tensors) tensor.dtype = *spec.options.wire;
  return spec;
}

void validate(const BucketSpec& spec) {
  if (spec.tensors.empty()) {
    throw InputError(fmt::format("bucket '{}' has no tensors: give it at least one", spec.name));
  }
  if (spec.rounds && (*spec.rounds < 1 || *spec.rounds > kMostRounds)) {
    throw InputError(
        fmt::format("bucket '{}': {} rounds: use 1 to {}", spec.name, *spec.rounds, kMostRounds));
  }
  std::set<std::string> names;
  Index bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      throw InputError(
          fmt::format("bucket '{}': tensor name '{}' is empty or repeated: give each a unique name",
                      spec.name, tensor.name));
    }
    if (tensor.rows < 1 || tensor.width < 1) {
      throw InputError(fmt::format("tensor '{}': {} rows of width {}: both must be at least 1",
                                   tensor.name, tensor.rows, tensor.width));
    }
    // Counts 8 bytes per element, because no element type and no sum is wider.
    if (tensor.width > kMostBytes / 8 || tensor.rows > (kMostBytes - bytes) / (8 * tensor.width)) {
      throw InputError(fmt::format(
          "tensor '{}': {} rows of width {} are too large for a bucket: use a smaller tensor",
          tensor.name, tensor.rows, tensor.width));
    }
    bytes += 8 * tensor.rows * tensor.width;
    validate_wire(spec, tensor);
    if (spec.reduction == Reduction::mean && is_integer(tensor.dtype)) {
      throw InputError(fmt::format(
          "bucket '{}', tensor '{}': the mean of {} is not an integer: use the sum, or a "
          "floating-point dtype",
          spec.name, tensor.name, name_of(tensor.dtype)));
    }
  }
}

std::vector<RowSpace> row_spaces(std::span<const TensorSpec> tensors) {
  std::vector<RowSpace> spaces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    auto space = std::find_if(spaces.begin(), spaces.end(), [&](const RowSpace& candidate) {
      return candidate.dtype == tensor.dtype && candidate.width == tensor.width;
    });
    if (space == spaces.end()) {
      space = spaces.insert(space, RowSpace{tensor.dtype, tensor.width, 0, {}});
    }
    space->members.push_back({i, space->rows});
    space->rows += tensor.rows;
  }
  return spaces;
}

}  // namespace sparsesync
