#include "schemes/dense/flat_array.h"

#include <algorithm>

#include "kernels/base/bits.h"

namespace sparsesync {
namespace {

DType own_dtype(DType dtype) {
  return dtype;
}

}  // namespace

FlatArray::FlatArray(std::span<const RowSpace> spaces, TypeOf type_of) {
  for (const RowSpace& space : spaces) {
    const DType dtype = type_of(space.dtype);
    parts_.push_back({elements_, round_up<Index>(bytes_, 8), space.elements(), dtype});
    elements_ += space.elements();
    bytes_ = parts_.back().first_byte + space.elements() * element_bytes(dtype);
  }
}

Index FlatArray::begin_of(Index element) const {
  for (const Part& part : parts_) {
    const Index within = element - part.first_element;
    if (within < part.elements) return part.first_byte + within * element_bytes(part.dtype);
  }
  return bytes_;
}

FlatArray flat_sums(std::span<const RowSpace> spaces) {
  return {spaces, sum_dtype};
}

FlatArray flat_values(std::span<const RowSpace> spaces) {
  return {spaces, own_dtype};
}

bool are_own_sums(std::span<const RowSpace> spaces) {
  return std::all_of(spaces.begin(), spaces.end(),
                     [](const RowSpace& space) { return space.is_own_sum(); });
}

}  // namespace sparsesync
