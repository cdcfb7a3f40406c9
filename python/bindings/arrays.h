// Arrays of Python as views, without copies: NumPy's, and all that speak DLPack.
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

/// Rows one after another; read.
using ConstArray = nanobind::ndarray<nanobind::ro, nanobind::c_contig>;
/// The same, written.
using Array = nanobind::ndarray<nanobind::c_contig>;
/// Indices as they are read: one dimension of int64.
using ConstIndices =
    nanobind::ndarray<nanobind::ro, const std::int64_t, nanobind::ndim<1>, nanobind::c_contig>;

/// Where arrays are to be: in the memory of a GPU, or of the host.
struct Place {
  std::optional<int> gpu = std::nullopt;  // its number
};

// What Python gave, never a copy of it: what is of another form is refused.

/// @param what   what it is to be; stands before the reason in the text
/// @param place  where it has to be
/// @throws InputError where it is no such array, elsewhere, or not aligned for its elements
ConstArray array_of(nanobind::handle given, const std::string& what, Place place = {});
/// To be written to.
/// @throws InputError as array_of(), and where it is read-only
Array writable_of(nanobind::handle given, const std::string& what, Place place = {});
/// @throws InputError as array_of()
ConstIndices indices_of(nanobind::handle given, const std::string& what, Place place = {});

/// @throws InputError naming the first that is outside [0, rows)
void expect_inside(std::span<const Index> indices, Index rows, const std::string& what);

/// The element type; uint16 stands for bf16, which NumPy has not.
/// @throws InputError if there is none like it
DType dtype_of(nanobind::dlpack::dtype type, const std::string& what);

/// The first dimension as rows, all others together as the width.
/// @throws InputError if it has no dimension, or an element type that there is not
ConstMatrix matrix_of(const ConstArray& array, const std::string& what);

inline std::span<const Index> span_of(const ConstIndices& indices) {
  return {indices.data(), indices.size()};
}

/// A NumPy array that owns a copy of these.
nanobind::object new_indices(std::span<const Index> indices);
/// A NumPy array of one dimension that owns these.
nanobind::object new_indices(std::unique_ptr<Index[]> indices, Index count);
/// A NumPy array [rows, width] that owns a copy of these; bf16 stands as uint16.
nanobind::object new_values(ConstMatrix values);

}  // namespace sparsesync::python
