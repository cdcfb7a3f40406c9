// Kernels on arrays.
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

constexpr const char* kCoalesce =
    "Sums rows that occur several times: the distinct rows, increasing, and their sums.\n\n"
    "indices: int64 [nnz], in [0, rows), any order, repeats allowed. values: [nnz, ...] of f16, "
    "f32, f64, i32, i64 or bf16 (in NumPy uint16). Sums are made in the order of `indices`; f16 "
    "and "
    "bf16 in f32, rounded once; integers wrap.\n"
    "Returns new NumPy arrays: int64 [distinct], and [distinct, elements of a row]. Raises "
    "InputError for an index outside.";

constexpr const char* kCompact =
    "Finds the rows of a dense tensor in which some element is not zero.\n\n"
    "dense: [rows, ...]. A row is left out only where every element is zero, never by its sum; "
    "-0.0 is zero, NaN is not.\n"
    "Returns new NumPy arrays: int64 [found], increasing, and [found, elements of a row].";

constexpr const char* kEncode =
    "Writes indices as bytes.\n\n"
    "indices: int64 [n], strictly increasing, in [0, rows). code: 'coo' (4 bytes each, 8 beyond "
    "2^32 rows), 'elias_fano', 'bitmap', or 'all' (no bytes, where all rows are there); the one "
    "with the fewest bytes if none is given.\n"
    "Returns the code's name and the bytes.";

constexpr const char* kDecode =
    "Reads indices that encode_indices() wrote.\n\n"
    "code, bytes: what it returned. rows: as it was given. count: how many indices were written.\n"
    "Returns a new NumPy array, int64 [count]. The bytes are not trusted: raises CorruptDataError "
    "where they are not exactly such a code.";

/// That index codes can tell apart.
constexpr Index kMostRows = Index{1} << 62;

void expect_rows(Index rows) {
  if (rows < 0 || rows > kMostRows)
    throw InputError(fmt::format("{} rows: 0 to 2^62 are possible", rows));
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
      throw InputError(fmt::format("indices: index {} at place {} is outside [0, {})",
                                   of[static_cast<std::size_t>(*check.outside)], *check.outside,
                                   rows));
    }
    CoalesceWorkspace workspace(context);
    const std::span<Index> room = found.reserve(from.rows);
    // Rows of no elements have an address, too.
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
    // Few rows are expected; the second time there is room for all.
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
      fmt::format("there is no index code '{}': coo, elias_fano, bitmap or all", name));
}

/// @throws InputError unless they are what encode() asks for
void expect_increasing(std::span<const Index> indices, Index rows) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= rows || (i > 0 && indices[i] <= indices[i - 1])) {
      throw InputError(fmt::format("index {} at place {}: indices increase strictly within [0, {})",
                                   indices[i], i, rows));
    }
  }
}

/// Bytes that are still to be written.
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
        fmt::format("the code 'all' writes all rows: {} of {} are there", of.size(), rows));
  }
  nb::bytes bytes = new_bytes(encoded_bytes(code, rows, std::ssize(of)));
  const std::span<std::byte> out(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr())),
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
  // Before memory is asked for: every code but `all` takes a bit for an index at the least.
  const bool possible = code == IndexCode::all ? count == rows : count <= 8 * std::ssize(from);
  if (!possible) {
    throw CorruptDataError(
        fmt::format("{}: {} bytes for {} of {} rows", name, from.size(), count, rows));
  }
  // More have no addresses.
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
