// All row spaces of a bucket as one flat array of elements, which dense schemes divide into chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/views.h"
#include "schemes/bucket.h"

namespace sparsesync {

/// Offsets of row spaces in one flat array of elements. The bytes of each row space are aligned to
/// 8, so that every element is aligned.
class FlatArray {
 public:
  using TypeOf = DType (*)(DType);

  /// @param spaces   the row spaces
  /// @param type_of  returns the type of an element in this array, from its dtype
  FlatArray(std::span<const RowSpace> spaces, TypeOf type_of);

  Index elements() const { return elements_; }
  Index bytes() const { return bytes_; }

  /// Returns the byte range of a range of elements.
  IndexRange bytes_of(IndexRange elements) const {
    return {begin_of(elements.begin), begin_of(elements.end)};
  }

  /// Returns the intersection of a range of elements with a row space, as a matrix of one row in
  /// the array at `base`.
  template <typename Byte>
  BasicMatrix<Byte> piece(std::size_t space, IndexRange elements, Byte* base) const {
    const Part& part = parts_[space];
    const Index begin = std::clamp<Index>(elements.begin - part.first_element, 0, part.elements);
    const Index end = std::clamp<Index>(elements.end - part.first_element, 0, part.elements);
    return {base + part.first_byte + begin * element_bytes(part.dtype), part.dtype, 1, end - begin};
  }

 private:
  struct Part {
    Index first_element = 0;
    Index first_byte = 0;
    Index elements = 0;
    DType dtype = DType::f32;
  };

  Index begin_of(Index element) const;

  std::vector<Part> parts_;
  Index elements_ = 0;
  Index bytes_ = 0;
};

/// Returns the layout of the array of sums.
FlatArray flat_sums(std::span<const RowSpace> spaces);
/// Returns the layout of the array of values.
FlatArray flat_values(std::span<const RowSpace> spaces);

/// Returns whether the sums of all row spaces have the dtype of the values. Both arrays then have
/// the same layout.
bool are_own_sums(std::span<const RowSpace> spaces);

}  // namespace sparsesync
