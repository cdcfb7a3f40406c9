// CUDA implementations of the row operations.
#include "kernels/rows/rows.h"

#include <algorithm>

#include "kernels/cuda/job_table.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/values.h"
#include "kernels/rows/row_sums.cuh"

namespace sparsesync::cuda {
namespace {

/// Copies rows between two matrices, either from the rows of a list or to them. Strides are in
/// units.
struct CopyWork {
  const std::byte* from;
  Index from_stride;
  std::byte* to;
  Index to_stride;
  const Index* rows;
  Index units;
  Index first_tile;  // a tile is a row
};

/// Copies rows. Each thread loads all its units of a part before it stores them.
template <bool scatters, typename Unit, typename Cut>
__global__ void copy_rows(const __grid_constant__ JobTable<CopyWork> table, Cut cut) {
  cut.for_each(table.tiles(), [&](Index row, Index first) {
    const CopyWork& work = table.of(row);
    const Index i = row - work.first_tile;
    const Index listed = work.rows[i];
    const auto* const source =
        reinterpret_cast<const Unit*>(work.from) + (scatters ? i : listed) * work.from_stride;
    auto* const target =
        reinterpret_cast<Unit*>(work.to) + (scatters ? listed : i) * work.to_stride;
    Unit units[Cut::kUnits] = {};
    for (int k = 0; k < Cut::kUnits; ++k) {
      const Index unit = first + k * cut.stride();
      if (unit < work.units) units[k] = source[unit];
    }
    for (int k = 0; k < Cut::kUnits; ++k) {
      const Index unit = first + k * cut.stride();
      if (unit < work.units) target[unit] = units[k];
    }
  });
}

/// A copy of rows, in bytes.
struct RowCopy {
  const std::byte* from;
  Index from_stride;
  std::byte* to;
  Index to_stride;
  std::span<const Index> rows;
  Index bytes;  // bytes per row
};

RowCopy copy_of(ConstMatrix from, const GatherJob& job) {
  SPARSESYNC_EXPECT(std::ssize(job.rows), ==, job.out.rows);
  return {from.data + job.first_column * element_bytes(from.dtype),
          from.row_bytes(),
          job.out.data,
          job.out.row_bytes(),
          job.rows,
          job.out.row_bytes()};
}

RowCopy copy_of(const ScatterJob& job, Matrix out) {
  SPARSESYNC_EXPECT(std::ssize(job.rows), ==, job.from.rows);
  return {job.from.data,
          job.from.row_bytes(),
          out.data + job.first_column * element_bytes(out.dtype),
          out.row_bytes(),
          job.rows,
          job.from.row_bytes()};
}

/// Copies the rows of all jobs, with several jobs per launch.
/// @param copy_of_job  copy_of_job(job): its RowCopy
template <bool scatters, typename Job, typename CopyOfJob>
void copy_all(const Context& context, std::span<const Job> jobs, CopyOfJob&& copy_of_job) {
  std::uint64_t addresses = 0;
  Index longest = 0;  // bytes of the longest row
  for (const Job& job : jobs) {
    const RowCopy copy = copy_of_job(job);
    if (copy.rows.empty() || copy.bytes == 0) continue;
    addresses |= address_of(copy.from) | address_of(copy.to) |
                 static_cast<std::uint64_t>(copy.from_stride | copy.to_stride | copy.bytes);
    longest = std::max(longest, copy.bytes);
  }
  if (longest == 0) return;
  const int unit = common_unit(addresses);
  const auto add_to = [&](JobTable<CopyWork>& table, const Job& job) {
    const RowCopy copy = copy_of_job(job);
    if (copy.rows.empty() || copy.bytes == 0) return;
    table.add({copy.from, copy.from_stride / unit, copy.to, copy.to_stride / unit, copy.rows.data(),
               copy.bytes / unit, 0},
              std::ssize(copy.rows));
  };
  for_tables<CopyWork>(jobs, add_to, [&](const JobTable<CopyWork>& table) {
    for_unit(unit, [&]<typename Unit>(Unit) {
      with_row_cut(longest / unit, [&]<typename Cut>(Cut cut) {
        launch<copy_rows<scatters, Unit, Cut>>(
            context, blocks_for(context, cut.threads(table.tiles())), kBlock, table, cut);
      });
    });
  });
}

template <typename T>
struct StartSum {
  using Sum = typename ValueTraits<T>::Sum;
  __device__ Sum operator()(T value) const { return sparsesync::detail::start_sum(value); }
};

template <typename T>
struct RoundSum {
  using Sum = typename ValueTraits<T>::Sum;
  Sum factor;
  __device__ T operator()(Sum sum) const { return sparsesync::detail::round_sum<T>(sum, factor); }
};

struct Shift {
  Index by;
  __device__ Index operator()(Index index) const { return index + by; }
};

template <typename T>
struct AddToSums {
  const std::byte* addends;
  std::byte* sums;

  template <typename Elements>
  __device__ void operator()(const Elements& elements) const {
    T values[Elements::kCount];
    elements.load(addends, values);
    typename ValueTraits<T>::Sum results[Elements::kCount];
    elements.load(sums, results);
    for (int i = 0; i < Elements::kCount; ++i) results[i] += ValueTraits<T>::widen(values[i]);
    elements.store(sums, results);
  }
};

}  // namespace

void gather_rows_all(const Context& context, ConstMatrix from, std::span<const GatherJob> jobs) {
  copy_all<false>(context, jobs, [&](const GatherJob& job) { return copy_of(from, job); });
}

void scatter_rows_all(const Context& context, std::span<const ScatterJob> jobs, Matrix out) {
  copy_all<true>(context, jobs, [&](const ScatterJob& job) { return copy_of(job, out); });
}

void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out) {
  const GatherJob job{rows, first_column, out};
  gather_rows_all(context, from, {&job, 1});
}

void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out) {
  const ScatterJob job{from, rows, first_column};
  scatter_rows_all(context, {&job, 1}, out);
}

void copy(const Context& context, std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;
  const CudaStream::Timed timed(stream_of(context));
  check(
      cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, stream_of(context).handle()),
      "copying on the device");
  stream_of(context).count_copy();
}

void fill_zero(const Context& context, std::span<std::byte> bytes) {
  clear(context, bytes.data(), bytes.size());
}

void shift(const Context& context, std::span<const Index> indices, Index by,
           std::span<Index> shifted) {
  SPARSESYNC_EXPECT(indices.size(), ==, shifted.size());
  const std::span<const std::byte> from = std::as_bytes(indices);
  const std::span<std::byte> to = std::as_writable_bytes(shifted);
  convert_each<Index, Index>(context, std::ssize(indices), from.data(), to.data(), Shift{by});
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
  for_dtype(from.dtype, [&]<typename T>(T) {
    convert_each<T, typename ValueTraits<T>::Sum>(context, from.rows * from.width, from.data,
                                                  sums.data, StartSum<T>{});
  });
}

void add_rows(const Context& context, ConstMatrix from, std::span<const Index> rows, Matrix sums) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, from.rows);
  expect_sums(sums.dtype, from.dtype);
  SPARSESYNC_EXPECT(sums.width, ==, from.width);
  if (rows.empty()) return;
  Scratch scratch(context);
  const DistinctRows distinct =
      find_distinct(context, scratch, rows, sums.rows, 0, scratch.allocate<Index>(std::ssize(rows)),
                    scratch.allocate<Index>(1).data());
  for_dtype(from.dtype, [&]<typename T>(T) { add_to_sums<T>(context, distinct, from, sums); });
}

void add(const Context& context, ConstMatrix addends, Matrix sums) {
  expect_sums(sums.dtype, addends.dtype);
  expect_same_shape(addends, sums);
  for_dtype(addends.dtype, [&]<typename T>(T) {
    for_each_pack<T, typename ValueTraits<T>::Sum>(context, addends.rows * addends.width,
                                                   address_of(addends.data) | address_of(sums.data),
                                                   AddToSums<T>{addends.data, sums.data});
  });
}

void round_sums(const Context& context, ConstMatrix sums, double scale, Matrix out) {
  expect_sums(sums.dtype, out.dtype);
  expect_same_shape(sums, out);
  SPARSESYNC_EXPECT(is_integer(out.dtype) && scale != 1, ==, false);
  for_dtype(out.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    convert_each<Sum, T>(context, out.rows * out.width, sums.data, out.data,
                         RoundSum<T>{static_cast<Sum>(scale)});
  });
}

}  // namespace sparsesync::cuda
