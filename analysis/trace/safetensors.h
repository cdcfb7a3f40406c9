// Files in safetensors format: 8 bytes of little-endian header length, a JSON header, and the
// tensors' bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/support/input_file.h"
#include "engine/support/output_file.h"
#include "kernels/base/views.h"

namespace sparsesync {

/// A tensor that was read from a safetensors file, or that is written to one. A view of its bytes.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;         // name in the format: "I64", "I32", "F32", "BF16", ...
  std::vector<Index> shape;  // rows first; empty for a single number
  std::span<const std::byte> bytes;

  /// Returns the product of the shape.
  Index elements() const;
};

/// Returns the element size of a dtype. Tensors of an unknown dtype are listed, but only their
/// offsets in the file are verified.
/// @param dtype  name in the format
/// @return bytes; 0 if the dtype is unknown
Index safetensors_element_bytes(const std::string& dtype);

/// Returns the name of a dtype in the format: "F32", "BF16", "I64", ...
std::string safetensors_name(DType dtype);

/// A fully verified file: header, names, dtypes, shapes, offsets, overlap and total size.
class SafetensorsFile {
 public:
  /// Reads and verifies a file.
  /// @throws InputError if the file cannot be read or violates the format
  static SafetensorsFile open(const std::filesystem::path& path);

  /// Returns the tensors in the order of their bytes. The views live as long as this object, or the
  /// one that it was moved to.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  /// Finds a tensor by its name, in O(log n).
  /// @return null if the file has no such tensor; lives as long as tensors()
  const SafetensorsEntry* find(const std::string& name) const;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> tensors_;
  std::vector<std::size_t> by_name_;  // positions in tensors_, in the order of names
};

/// Writes a complete safetensors file into `file`, which the caller commits. Tensors are ordered by
/// the size of their elements, largest first, so that each is aligned.
/// @throws IoError if the file cannot be written
/// @throws ContractError if the bytes of a tensor do not match its shape and dtype
void write_safetensors(OutputFile& file, std::span<const SafetensorsEntry> tensors);

}  // namespace sparsesync
