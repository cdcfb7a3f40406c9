// Python bindings of kernels on arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/threads.h"
#include "kernels/indices/index_code.h"
#include "kernels/rows/coalesce.h"
#include "kernels/rows/compact.h"
#include "python/bindings/arrays.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "sparsesync/memory.h"

namespace nb = nanobind;

namespace sparsesync::python {
namespace {

constexpr const char* kCoalesce = R"doc(Sums the values of repeated rows.

Values are added in the order of `indices`. f16 and bf16 are added in f32 and rounded once. Integers
wrap.

Args:
    indices: Rows in [0, rows): `[nnz]`, dtype int64, in any order, with repeats allowed.
    values: `[nnz, ...]`, dtype f16, f32, f64, i32, i64 or bf16 (NumPy arrays: uint16).
    rows: Number of rows of the tensor.

Returns:
    New NumPy arrays `(indices, values)`. `indices`: the distinct rows, increasing, `[distinct]`,
    dtype int64. `values`: their sums, `[distinct, row width]`.

Raises:
    InputError: An index is outside [0, rows), or the arrays do not fit together.

Example:
    >>> import numpy, sparsesync
    >>> values = numpy.array([[1.0], [2.0], [3.0]])
    >>> indices, values = sparsesync.coalesce(numpy.array([5, 2, 5]), values, rows=10)
    >>> indices.tolist(), values.tolist()
    ([2, 5], [[2.0], [4.0]]))doc";

constexpr const char* kCompact = R"doc(Finds the non-zero rows of a dense tensor.

A row is omitted only if every element is zero; -0.0 is zero, NaN is not. The sum of a row does not
matter.

Args:
    dense: `[rows, ...]`, dtype f16, f32, f64, i32, i64 or bf16 (NumPy arrays: uint16).

Returns:
    New NumPy arrays `(indices, values)`. `indices`: increasing, `[found]`, dtype int64. `values`:
    `[found, row width]`.

Raises:
    InputError: The array has no dimensions, or another dtype.

Example:
    >>> import numpy, sparsesync
    >>> indices, values = sparsesync.compact(numpy.array([[0.0, 0.0], [1.0, -1.0]]))
    >>> indices.tolist(), values.tolist()
    ([1], [[1.0, -1.0]]))doc";

constexpr const char* kEncode = R"doc(Encodes row indices as bytes.

Args:
    indices: Rows in [0, rows), strictly increasing: `[n]`, dtype int64.
    rows: Number of rows of the tensor.
    code: `'coo'` (4 bytes per index, 8 bytes above 2^32 rows), `'elias_fano'`, `'bitmap'`, or
        `'all'` (no bytes; requires every row). None selects the code with the fewest bytes.

Returns:
    The name of the code, and the bytes.

Raises:
    InputError: The indices are not strictly increasing within [0, rows), or the code is unknown or
        does not fit.

Example:
    >>> import numpy, sparsesync
    >>> code, data = sparsesync.encode_indices(numpy.array([3, 7]), rows=1000, code="coo")
    >>> code, len(data)
    ('coo', 8)
    >>> sparsesync.decode_indices(code, data, rows=1000, count=2).tolist()
    [3, 7])doc";

constexpr const char* kDecode = R"doc(Decodes row indices from `encode_indices()`.

The bytes are fully verified, so they may come from an untrusted source.

Args:
    code: Name of the code.
    bytes: The encoded indices.
    rows: Number of rows of the tensor, as given to `encode_indices()`.
    count: Number of encoded indices.

Returns:
    A new NumPy array, `[count]`, dtype int64.

Raises:
    CorruptDataError: The bytes are not exactly an encoding of `count` indices.
    InputError: The code is unknown, or `rows` or `count` is out of its range.)doc";

/// Largest number of rows that index codes support.
constexpr Index kMostRows = Index{1} << 62;

void expect_rows(Index rows) {
  if (rows < 0 || rows > kMostRows) throw InputError(fmt::format("{} rows: give 0 to 2^62", rows));
}

nb::tuple coalesced(nb::handle given_indices, nb::handle given_values, Index rows) {
  expect_rows(rows);
  const ConstIndices indices = indices_of(given_indices, "indices");
  const ConstArray values = array_of(given_values, "values");
  const ConstMatrix from = matrix_of(values, "values");
  const std::span<const Index> of = span_of(indices);
  if (from.rows != std::ssize(of)) {
    throw InputError(
        fmt::format("{} indices with {} rows of values: give one for each", of.size(), from.rows));
  }
  HostMemory memory;
  const Context context(memory);
  Buffer<Index> found(context);
  Buffer<std::byte> sums(context);
  std::int64_t count = 0;
  {
    const WithoutGil without_gil;
    const DefaultFloatEnvironment default_modes;
    const IndexCheck check = check_indices(context, rows, of);
    if (check.outside) {
      throw InputError(fmt::format("indices: index {} at position {} is outside [0, {})",
                                   of[static_cast<std::size_t>(*check.outside)], *check.outside,
                                   rows));
    }
    CoalesceWorkspace workspace(context);
    const std::span<Index> room = found.reserve(from.rows);
    // Rows of width 0 need an address, too.
    const std::span<std::byte> of_sums = sums.reserve(std::max<Index>(1, from.bytes()));
    const Matrix into{of_sums.data(), from.dtype, from.rows, from.width};
    coalesce(context, {of, from}, {0, rows}, room, into, Count(&count), workspace);
  }
  return nb::make_tuple(new_indices({found.data(), static_cast<std::size_t>(count)}),
                        new_values({sums.data(), from.dtype, count, from.width}));
}

nb::tuple compacted(nb::handle given) {
  const ConstArray dense = array_of(given, "dense");
  const ConstMatrix from = matrix_of(dense, "dense");
  HostMemory memory;
  const Context context(memory);
  Buffer<Index> found(context);
  Buffer<std::byte> rows(context);
  std::int64_t count = 0;
  if (from.width > 0) {
    const WithoutGil without_gil;
    const DefaultFloatEnvironment default_modes;
    // The first capacity assumes that few rows are non-zero. If it is too small, the first pass
    // returns the count, and the second one has the capacity for all.
    for (Index room = from.rows / 16 + 16;; room = count) {
      const Matrix into{rows.reserve(room * from.row_bytes()).data(), from.dtype, room, from.width};
      compact(context, from, 0, found.reserve(room), into, Count(&count));
      if (count <= room) break;
    }
  }
  return nb::make_tuple(new_indices({found.data(), static_cast<std::size_t>(count)}),
                        new_values({rows.data(), from.dtype, count, from.width}));
}

IndexCode code_named(const std::string& name) {
  for (const IndexCode code :
       {IndexCode::coo, IndexCode::elias_fano, IndexCode::bitmap, IndexCode::all}) {
    if (name == name_of(code)) return code;
  }
  throw InputError(
      fmt::format("there is no index code '{}': use coo, elias_fano, bitmap or all", name));
}

/// Verifies the precondition of encode().
/// @throws InputError unless the indices increase strictly within [0, rows)
void expect_increasing(std::span<const Index> indices, Index rows) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= rows || (i > 0 && indices[i] <= indices[i - 1])) {
      throw InputError(
          fmt::format("index {} at position {}: indices must increase strictly within [0, {})",
                      indices[i], i, rows));
    }
  }
}

/// Returns a bytes object with uninitialized contents.
nb::bytes new_bytes(Index size) {
  PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, size);
  if (bytes == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(bytes);
}

nb::tuple encoded(nb::handle given, Index rows, const std::optional<std::string>& name) {
  expect_rows(rows);
  const ConstIndices indices = indices_of(given, "indices");
  const std::span<const Index> of = span_of(indices);
  {
    const WithoutGil without_gil;
    expect_increasing(of, rows);
  }
  const IndexCode code = name ? code_named(*name) : cheapest_code(rows, std::ssize(of));
  if (code == IndexCode::all && std::ssize(of) != rows) {
    throw InputError(
        fmt::format("the code 'all' needs every row: {} of {} rows are given", of.size(), rows));
  }
  nb::bytes bytes = new_bytes(encoded_bytes(code, rows, std::ssize(of)));
  const std::span<std::byte> out(reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr())),
                                 bytes.size());
  {
    const WithoutGil without_gil;
    HostMemory memory;
    encode(Context(memory), code, {0, rows}, of, out);
  }
  return nb::make_tuple(std::string(name_of(code)), std::move(bytes));
}

nb::object decoded(const std::string& name, const nb::bytes& bytes, Index rows, Index count) {
  expect_rows(rows);
  if (count < 0 || count > rows)
    throw InputError(fmt::format("{} indices of {} rows", count, rows));
  const IndexCode code = code_named(name);
  const std::span<const std::byte> from(static_cast<const std::byte*>(bytes.data()), bytes.size());
  // Checked before memory is allocated: every code except `all` takes at least one bit per index.
  const bool possible = code == IndexCode::all ? count == rows : count <= 8 * std::ssize(from);
  if (!possible) {
    throw CorruptDataError(
        fmt::format("{}: {} bytes cannot encode {} of {} rows", name, from.size(), count, rows));
  }
  // A larger array exceeds the address space.
  if (count > PTRDIFF_MAX / static_cast<Index>(sizeof(Index))) throw std::bad_alloc();
  std::unique_ptr<Index[]> indices;
  {
    const WithoutGil without_gil;
    indices = std::make_unique_for_overwrite<Index[]>(static_cast<std::size_t>(count));
    HostMemory memory;
    decode(Context(memory), code, {0, rows}, from,
           {indices.get(), static_cast<std::size_t>(count)});
  }
  return new_indices(std::move(indices), count);
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def(
      "coalesce", coalesced, nb::arg("indices").none(), nb::arg("values").none(), nb::arg("rows"),
      kCoalesce,
      nb::sig("def coalesce(indices: sparsesync.SupportsDLPack, values: sparsesync.SupportsDLPack, "
              "rows: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
              "numpy.typing.NDArray[typing.Any]]"));
  module.def("compact", compacted, nb::arg("dense").none(), kCompact,
             nb::sig("def compact(dense: sparsesync.SupportsDLPack) -> "
                     "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[typing.Any]]"));
  module.def("encode_indices", encoded, nb::arg("indices").none(), nb::arg("rows"),
             nb::arg("code") = nb::none(), kEncode,
             nb::sig("def encode_indices(indices: sparsesync.SupportsDLPack, rows: int, "
                     "code: str | None = None) -> tuple[str, bytes]"));
  module.def("decode_indices", decoded, nb::arg("code"), nb::arg("bytes"), nb::arg("rows"),
             nb::arg("count"), kDecode,
             nb::sig("def decode_indices(code: str, bytes: bytes, rows: int, count: int) -> "
                     "numpy.typing.NDArray[numpy.int64]"));
}

}  // namespace sparsesync::python
