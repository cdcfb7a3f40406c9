// NumPy's .npy files of integers: token ids, categorical fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// An array of integers, rows one after another.
struct NpyArray {
  std::vector<std::int64_t> values;
  std::vector<Index> shape;  // one or two numbers
};

/// Reads versions 1, 2 and 3 of the format; integers of 1, 2, 4 or 8 bytes, signed or not,
/// little-endian; one or two dimensions, in C or Fortran order. Negative values are read: who uses
/// them refuses them.
/// @throws InputError if the file is not that; the text says what it is instead, and how to save it
NpyArray read_npy(const std::filesystem::path& path);

}  // namespace sparsesync
