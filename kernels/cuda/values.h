// Elements of matrices in kernels. For kernel sources only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/views.h"
#include "kernels/cuda/launch.h"

namespace sparsesync::cuda {

/// @throws ContractError unless sums of `values` are `sums`
inline void expect_sums(DType sums, DType values) {
  SPARSESYNC_EXPECT(std::string(name_of(sums)), ==, std::string(name_of(sum_dtype(values))));
}

/// @throws ContractError
inline void expect_same_shape(ConstMatrix from, Matrix to) {
  SPARSESYNC_EXPECT(from.rows, ==, to.rows);
  SPARSESYNC_EXPECT(from.width, ==, to.width);
}

/// An element of a matrix, wherever it lies.
template <typename T>
__device__ T load(const std::byte* from, Index element) {
  return load_anywhere<T>(from + element * static_cast<Index>(sizeof(T)));
}
/// Writes an element of a matrix, wherever it lies.
template <typename T>
__device__ void store(std::byte* to, Index element, T value) {
  store_anywhere(to + element * static_cast<Index>(sizeof(T)), value);
}

/// The largest unit, of 16 bytes or a smaller power of two, that divides all these numbers: in such
/// units rows are copied that begin and end at multiples of it.
/// @param addresses  addresses, offsets and sizes, or'ed together
inline int common_unit(std::uint64_t addresses) {
  int unit = 16;
  while (addresses % static_cast<std::uint64_t>(unit) != 0) unit /= 2;
  return unit;
}
/// As common_unit() takes it.
inline std::uint64_t address_of(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Calls body with a value of an integer type of `unit` bytes: 1, 2, 4, 8, or 16 as uint4.
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
