// CUDA bodies of the row operations.
#include "kernels/rows.h"

#include "kernels/cuda/segments.h"
#include "kernels/cuda/values.h"

namespace sparsesync::cuda {
namespace {

/// Rows of `bytes` bytes each, in a matrix whose rows are `stride` bytes apart.
template <typename Byte>
struct Strided {
  Byte* data;
  Index stride;
};

/// to.row(i) = from.row(rows[i]), or to.row(rows[i]) = from.row(i) where it scatters.
template <bool scatters, typename Unit>
void copy_rows(const Context& context, Strided<const std::byte> from, Strided<std::byte> to,
               const Index* rows, Index count, Index bytes) {
  const auto* const source = reinterpret_cast<const Unit*>(from.data);
  auto* const target = reinterpret_cast<Unit*>(to.data);
  const Index from_stride = from.stride / static_cast<Index>(sizeof(Unit));
  const Index to_stride = to.stride / static_cast<Index>(sizeof(Unit));
  for_each_of_rows(context, count, bytes / static_cast<Index>(sizeof(Unit)),
                   [=] __device__(Index i, Index unit) {
                     const Index from_row = scatters ? i : rows[i];
                     const Index to_row = scatters ? rows[i] : i;
                     target[to_row * to_stride + unit] = source[from_row * from_stride + unit];
                   });
}

template <bool scatters>
void copy_rows(const Context& context, Strided<const std::byte> from, Strided<std::byte> to,
               std::span<const Index> rows, Index bytes) {
  const int unit = common_unit(address_of(from.data) | address_of(to.data) |
                               static_cast<std::uint64_t>(from.stride | to.stride | bytes));
  for_unit(unit, [&]<typename Unit>(Unit) {
    copy_rows<scatters, Unit>(context, from, to, rows.data(), std::ssize(rows), bytes);
  });
}

template <typename T>
void start_sums_of(const Context& context, ConstMatrix from, Matrix sums) {
  using Sum = typename ValueTraits<T>::Sum;
  const std::byte* const values = from.data;
  Sum* const sum = reinterpret_cast<Sum*>(sums.data);
  for_each(context, sums.rows * sums.width, [=] __device__(Index i) {
    sum[i] = Sum{} + ValueTraits<T>::widen(load<T>(values, i));  // of -0, +0
  });
}

template <typename T>
void add_of(const Context& context, ConstMatrix addends, Matrix sums) {
  using Sum = typename ValueTraits<T>::Sum;
  const std::byte* const values = addends.data;
  Sum* const sum = reinterpret_cast<Sum*>(sums.data);
  for_each(context, sums.rows * sums.width,
           [=] __device__(Index i) { sum[i] += ValueTraits<T>::widen(load<T>(values, i)); });
}

template <typename T>
void round_sums_of(const Context& context, ConstMatrix sums, double scale, Matrix out) {
  using Sum = typename ValueTraits<T>::Sum;
  const Sum* const sum = reinterpret_cast<const Sum*>(sums.data);
  std::byte* const to = out.data;
  const auto factor = static_cast<Sum>(scale);
  for_each(context, out.rows * out.width,
           [=] __device__(Index i) { store(to, i, ValueTraits<T>::narrow(sum[i] * factor)); });
}

}  // namespace

void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, out.rows);
  copy_rows<false>(context,
                   {from.data + first_column * element_bytes(from.dtype), from.row_bytes()},
                   {out.data, out.row_bytes()}, rows, out.row_bytes());
}

void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, from.rows);
  copy_rows<true>(context, {from.data, from.row_bytes()},
                  {out.data + first_column * element_bytes(out.dtype), out.row_bytes()}, rows,
                  from.row_bytes());
}

void copy(const Context& context, std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;
  check(
      cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, queue_of(context).handle()),
      "copy on the device");
  queue_of(context).count_copy();
}

void fill_zero(const Context& context, std::span<std::byte> bytes) {
  clear(context, bytes.data(), bytes.size());
}

void shift(const Context& context, std::span<const Index> indices, Index by,
           std::span<Index> shifted) {
  SPARSESYNC_EXPECT(indices.size(), ==, shifted.size());
  const Index* const from = indices.data();
  Index* const to = shifted.data();
  for_each(context, std::ssize(indices), [=] __device__(Index i) { to[i] = from[i] + by; });
}

void number(const Context& context, std::span<Index> numbers) {
  Index* const to = numbers.data();
  for_each(context, std::ssize(numbers), [=] __device__(Index i) { to[i] = i; });
}

void invert(const Context& context, std::span<const Index> order, std::span<Index> places) {
  SPARSESYNC_EXPECT(order.size(), ==, places.size());
  const Index* const from = order.data();
  Index* const to = places.data();
  for_each(context, std::ssize(order), [=] __device__(Index i) { to[from[i]] = i; });
}

void start_sums(const Context& context, ConstMatrix from, Matrix sums) {
  expect_sums(sums.dtype, from.dtype);
  expect_same_shape(from, sums);
  for_dtype(from.dtype, [&]<typename T>(T) { start_sums_of<T>(context, from, sums); });
}

void add_rows(const Context& context, ConstMatrix from, std::span<const Index> rows, Matrix sums) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, from.rows);
  expect_sums(sums.dtype, from.dtype);
  SPARSESYNC_EXPECT(sums.width, ==, from.width);
  Scratch scratch(context);
  const SortedPlaces sorted = sort_places(context, scratch, rows, sums.rows);
  for_dtype(from.dtype, [&]<typename T>(T) { add_segments<T>(context, sorted, from, sums); });
}

void add(const Context& context, ConstMatrix addends, Matrix sums) {
  expect_sums(sums.dtype, addends.dtype);
  expect_same_shape(addends, sums);
  for_dtype(addends.dtype, [&]<typename T>(T) { add_of<T>(context, addends, sums); });
}

void round_sums(const Context& context, ConstMatrix sums, double scale, Matrix out) {
  expect_sums(sums.dtype, out.dtype);
  expect_same_shape(sums, out);
  SPARSESYNC_EXPECT(is_integer(out.dtype) && scale != 1, ==, false);
  for_dtype(out.dtype, [&]<typename T>(T) { round_sums_of<T>(context, sums, scale, out); });
}

}  // namespace sparsesync::cuda
