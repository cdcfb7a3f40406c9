// CPU bodies of the row operations. Values in messages have no alignment, so elements are read by
// memcpy.
#include "kernels/rows.h"

#include <cstring>
#include <numeric>
#include <string>

namespace sparsesync::cpu {
namespace {

template <typename T>
T load(const std::byte* from, Index element) {
  T value;
  std::memcpy(&value, from + element * static_cast<Index>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, Index element, T value) {
  std::memcpy(to + element * static_cast<Index>(sizeof(T)), &value, sizeof(T));
}

void expect_sums(DType sums, DType values) {
  SPARSESYNC_EXPECT(std::string(name_of(sums)), ==, std::string(name_of(sum_dtype(values))));
}

void expect_same_shape(ConstMatrix from, Matrix to) {
  SPARSESYNC_EXPECT(from.rows, ==, to.rows);
  SPARSESYNC_EXPECT(from.width, ==, to.width);
}

}  // namespace

void gather_rows(const Context&, ConstMatrix from, std::span<const Index> rows, Index first_column,
                 Matrix out) {
  SPARSESYNC_EXPECT(static_cast<Index>(rows.size()), ==, out.rows);
  const Index from_bytes = from.row_bytes();
  const Index out_bytes = out.row_bytes();
  const std::byte* base = from.data + first_column * element_bytes(from.dtype);
  std::byte* to = out.data;
  for (const Index row : rows) {
    std::memcpy(to, base + row * from_bytes, static_cast<std::size_t>(out_bytes));
    to += out_bytes;
  }
}

void scatter_rows(const Context&, ConstMatrix from, std::span<const Index> rows, Index first_column,
                  Matrix out) {
  SPARSESYNC_EXPECT(static_cast<Index>(rows.size()), ==, from.rows);
  const Index from_bytes = from.row_bytes();
  const Index out_bytes = out.row_bytes();
  std::byte* base = out.data + first_column * element_bytes(out.dtype);
  const std::byte* source = from.data;
  for (const Index row : rows) {
    std::memcpy(base + row * out_bytes, source, static_cast<std::size_t>(from_bytes));
    source += from_bytes;
  }
}

void copy(const Context&, std::span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void fill_zero(const Context&, std::span<std::byte> bytes) {
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

void shift(const Context&, std::span<const Index> indices, Index by, std::span<Index> shifted) {
  SPARSESYNC_EXPECT(indices.size(), ==, shifted.size());
  for (std::size_t i = 0; i < indices.size(); ++i) shifted[i] = indices[i] + by;
}

void number(const Context&, std::span<Index> numbers) {
  std::iota(numbers.begin(), numbers.end(), Index{0});
}

void invert(const Context&, std::span<const Index> order, std::span<Index> places) {
  SPARSESYNC_EXPECT(order.size(), ==, places.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    places[static_cast<std::size_t>(order[i])] = static_cast<Index>(i);
  }
}

void add_rows(const Context&, ConstMatrix from, std::span<const Index> rows, Matrix sums) {
  SPARSESYNC_EXPECT(static_cast<Index>(rows.size()), ==, from.rows);
  expect_sums(sums.dtype, from.dtype);
  SPARSESYNC_EXPECT(sums.width, ==, from.width);
  for_dtype(from.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const std::byte* source = from.data;
    for (const Index row : rows) {
      Sum* sum = reinterpret_cast<Sum*>(sums.data) + row * from.width;
      for (Index column = 0; column < from.width; ++column) {
        sum[column] += ValueTraits<T>::widen(load<T>(source, column));
      }
      source += from.row_bytes();
    }
  });
}

void add(const Context&, ConstMatrix addends, Matrix sums) {
  expect_sums(addends.dtype, sums.dtype);
  expect_same_shape(addends, sums);
  for_dtype(sums.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    Sum* sum = reinterpret_cast<Sum*>(sums.data);
    for (Index i = 0; i < sums.rows * sums.width; ++i) sum[i] += load<Sum>(addends.data, i);
  });
}

void round_sums(const Context&, ConstMatrix sums, double scale, Matrix out) {
  expect_sums(sums.dtype, out.dtype);
  expect_same_shape(sums, out);
  SPARSESYNC_EXPECT(is_integer(out.dtype) && scale != 1, ==, false);
  for_dtype(out.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    const Sum* sum = reinterpret_cast<const Sum*>(sums.data);
    const auto factor = static_cast<Sum>(scale);
    for (Index i = 0; i < out.rows * out.width; ++i) {
      store(out.data, i, ValueTraits<T>::narrow(sum[i] * factor));
    }
  });
}

}  // namespace sparsesync::cpu
