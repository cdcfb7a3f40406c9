// Views of Python's arrays, without copies: NumPy arrays, and all objects with DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/views.h"

namespace sparsesync::python {

/// A contiguous array that is read.
using ConstArray = nanobind::ndarray<nanobind::ro, nanobind::c_contig>;
/// A contiguous array that is written.
using Array = nanobind::ndarray<nanobind::c_contig>;
/// Indices that are read: one dimension, int64.
using ConstIndices =
    nanobind::ndarray<nanobind::ro, const std::int64_t, nanobind::ndim<1>, nanobind::c_contig>;

/// The memory that arrays must be in: a GPU's, or the host's.
struct Place {
  std::optional<int> gpu = std::nullopt;  // GPU number; nothing: the host
};

// These functions return views of Python's arrays, never copies, and reject all other objects.

/// Returns a view of an array.
/// @param what   name of the argument, for the error message
/// @param place  memory that the array must be in
/// @throws InputError if the object is not such an array, is elsewhere, or is misaligned
ConstArray array_of(nanobind::handle given, const std::string& what, Place place = {});
/// Returns a writable view of an array.
/// @throws InputError as array_of(), and if the array is read-only
Array writable_of(nanobind::handle given, const std::string& what, Place place = {});
/// Returns a view of indices.
/// @throws InputError as array_of()
ConstIndices indices_of(nanobind::handle given, const std::string& what, Place place = {});

/// Verifies that indices are in [0, rows).
/// @throws InputError with the first index that is not
void expect_inside(std::span<const Index> indices, Index rows, const std::string& what);

/// Returns an array's element type. uint16 represents bf16, which NumPy lacks.
/// @throws InputError if no DType corresponds
DType dtype_of(nanobind::dlpack::dtype type, const std::string& what);

/// Returns an array as a matrix: the first dimension is the rows, the product of the others the
/// width.
/// @throws InputError if the array has no dimension, or an unsupported element type
ConstMatrix matrix_of(const ConstArray& array, const std::string& what);

inline std::span<const Index> span_of(const ConstIndices& indices) {
  return {indices.data(), indices.size()};
}

/// Returns a NumPy array that owns a copy of the indices: `[n]`, int64.
nanobind::object new_indices(std::span<const Index> indices);
/// Returns a NumPy array that takes over the memory of the indices: `[count]`, int64.
nanobind::object new_indices(std::unique_ptr<Index[]> indices, Index count);
/// Returns a NumPy array `[rows, width]` that owns a copy of the values; bf16 becomes uint16.
nanobind::object new_values(ConstMatrix values);

}  // namespace sparsesync::python
