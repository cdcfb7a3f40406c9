// Access to elements of matrices. For kernel sources only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"
#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// Checks that `sums` is the dtype in which elements of `values` are summed.
/// @throws ContractError otherwise
inline void expect_sums(DType sums, DType values) {
  SPARSESYNC_EXPECT(std::string(name_of(sums)), ==, std::string(name_of(sum_dtype(values))));
}

/// Checks that two matrices have the same shape.
/// @throws ContractError otherwise
inline void expect_same_shape(ConstMatrix from, Matrix to) {
  SPARSESYNC_EXPECT(from.rows, ==, to.rows);
  SPARSESYNC_EXPECT(from.width, ==, to.width);
}

/// Loads an element of a matrix at any alignment.
template <typename T>
__device__ T load(const std::byte* from, Index element) {
  return load_anywhere<T>(from + element * static_cast<Index>(sizeof(T)));
}
/// Stores an element of a matrix at any alignment.
template <typename T>
__device__ void store(std::byte* to, Index element, T value) {
  store_anywhere(to + element * static_cast<Index>(sizeof(T)), value);
}

/// Returns the largest power of two, at most 16, that divides all given numbers. It is the unit in
/// bytes for copying rows that begin and end at its multiples.
/// @param addresses  addresses, offsets and sizes, or'ed together
inline int common_unit(std::uint64_t addresses) {
  int unit = 16;
  while (addresses % static_cast<std::uint64_t>(unit) != 0) unit /= 2;
  return unit;
}
/// Returns the address of a pointer as a number, for common_unit().
inline std::uint64_t address_of(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Calls `body` with a value of an integer type of `unit` bytes: 1, 2, 4, 8, or 16 as uint4.
template <typename Body>
void for_unit(int unit, Body&& body) {
  switch (unit) {
    case 16:
      return body(uint4{});
    case 8:
      return body(std::uint64_t{});
    case 4:
      return body(std::uint32_t{});
    case 2:
      return body(std::uint16_t{});
    default:
      return body(std::uint8_t{});
  }
}

}  // namespace sparsesync::cuda
