// CPU implementations of the row operations.
#include "kernels/rows/rows.h"

#include <cstring>
#include <numeric>
#include <string>

#include "kernels/base/threads.h"
#include "kernels/rows/row.h"

namespace sparsesync::cpu {
namespace {

void expect_sums(DType sums, DType values) {
  SPARSESYNC_EXPECT(std::string(name_of(sums)), ==, std::string(name_of(sum_dtype(values))));
}

void expect_same_shape(ConstMatrix from, Matrix to) {
  SPARSESYNC_EXPECT(from.rows, ==, to.rows);
  SPARSESYNC_EXPECT(from.width, ==, to.width);
}

}  // namespace

void gather_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                 Index first_column, Matrix out) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, out.rows);
  const Index from_bytes = from.row_bytes();
  const std::byte* base = from.data + first_column * element_bytes(from.dtype);
  with_constant(UsualRowBytes(), out.row_bytes(), [&](auto out_bytes) {
    parallel_for(context, out.rows, row_grain(out_bytes), [&](IndexRange range) {
      std::byte* to = out.data + range.begin * out_bytes;
      const std::span<const Index> taken = part_of(rows, range);
      for (std::size_t i = 0; i < taken.size(); ++i) {
        if (i + kRowsAhead < taken.size()) {
          prefetch_row(base + taken[i + kRowsAhead] * from_bytes, out_bytes);
        }
        std::memcpy(to, base + taken[i] * from_bytes, static_cast<std::size_t>(out_bytes));
        to += out_bytes;
      }
    });
  });
}

void scatter_rows(const Context& context, ConstMatrix from, std::span<const Index> rows,
                  Index first_column, Matrix out) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, from.rows);
  const Index out_bytes = out.row_bytes();
  std::byte* base = out.data + first_column * element_bytes(out.dtype);
  with_constant(UsualRowBytes(), from.row_bytes(), [&](auto from_bytes) {
    parallel_for(context, from.rows, row_grain(from_bytes), [&](IndexRange range) {
      const std::byte* source = from.data + range.begin * from_bytes;
      const std::span<const Index> taken = part_of(rows, range);
      for (std::size_t i = 0; i < taken.size(); ++i) {
        if (i + kRowsAhead < taken.size()) {
          prefetch_row<true>(base + taken[i + kRowsAhead] * out_bytes, from_bytes);
        }
        std::memcpy(base + taken[i] * out_bytes, source, static_cast<std::size_t>(from_bytes));
        source += from_bytes;
      }
    });
  });
}

void gather_rows_all(const Context& context, ConstMatrix from, std::span<const GatherJob> jobs) {
  for (const GatherJob& job : jobs) {
    gather_rows(context, from, job.rows, job.first_column, job.out);
  }
}

void scatter_rows_all(const Context& context, std::span<const ScatterJob> jobs, Matrix out) {
  for (const ScatterJob& job : jobs) {
    scatter_rows(context, job.from, job.rows, job.first_column, out);
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

void start_sums(const Context&, ConstMatrix from, Matrix sums) {
  expect_sums(sums.dtype, from.dtype);
  expect_same_shape(from, sums);
  for_dtype(from.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    Sum* sum = reinterpret_cast<Sum*>(sums.data);
    for (Index i = 0; i < sums.rows * sums.width; ++i) {
      sum[i] = detail::start_sum(load<T>(from.data, i));
    }
  });
}

void add_rows(const Context&, ConstMatrix from, std::span<const Index> rows, Matrix sums) {
  SPARSESYNC_EXPECT(std::ssize(rows), ==, from.rows);
  expect_sums(sums.dtype, from.dtype);
  SPARSESYNC_EXPECT(sums.width, ==, from.width);
  for_dtype(from.dtype, [&]<typename T>(T) {
    using Sum = typename ValueTraits<T>::Sum;
    Sum* const base = reinterpret_cast<Sum*>(sums.data);
    with_constant(UsualWidths(), from.width, [&](auto width) {
      constexpr auto kBytes = static_cast<Index>(sizeof(T));
      // Also prefetch past the last row: a caller that adds many parts in turn continues there.
      constexpr Index kAhead = 512;
      const std::byte* source = from.data;
      for (const Index row : rows) {
        prefetch_row(source + kAhead, width * kBytes);
        add_row<T>(source, width, base + row * width);
        source += width * kBytes;
      }
    });
  });
}

void add(const Context&, ConstMatrix addends, Matrix sums) {
  expect_sums(sums.dtype, addends.dtype);
  expect_same_shape(addends, sums);
  for_dtype(addends.dtype, [&]<typename T>(T) {
    add_row<T>(addends.data, sums.rows * sums.width,
               reinterpret_cast<typename ValueTraits<T>::Sum*>(sums.data));
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
      store(out.data, i, detail::round_sum<T>(sum[i], factor));
    }
  });
}

}  // namespace sparsesync::cpu
