// CPU bodies of the row operations. Values in messages have no alignment, so elements are read by
// memcpy.
#include "kernels/rows.h"

#include <cstring>
#include <numeric>

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

void add_rows(const Context&, ConstMatrix from, std::span<const Index> rows, float* sums) {
  SPARSESYNC_EXPECT(static_cast<Index>(rows.size()), ==, from.rows);
  for_dtype(from.dtype, [&]<typename T>(T) {
    const std::byte* source = from.data;
    for (const Index row : rows) {
      float* sum = sums + row * from.width;
      for (Index column = 0; column < from.width; ++column) {
        sum[column] += ValueTraits<T>::widen(load<T>(source, column));
      }
      source += from.row_bytes();
    }
  });
}

void add(const Context&, std::span<const float> addends, std::span<float> sums) {
  SPARSESYNC_EXPECT(addends.size(), ==, sums.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += addends[i];
}

void round_sums(const Context&, std::span<const float> sums, float scale, DType dtype,
                std::byte* out) {
  for_dtype(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      store(out, static_cast<Index>(i), ValueTraits<T>::narrow(sums[i] * scale));
    }
  });
}

}  // namespace sparsesync::cpu
