// The safetensors format: 8 bytes of little-endian header length, a JSON header, the tensors'
// bytes.
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

/// A tensor in a safetensors file, or one to be written. A view of its bytes.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;         // the format's own name: "I64", "I32", "F32", "BF16", ...
  std::vector<Index> shape;  // rows first; empty for a single number
  std::span<const std::byte> bytes;

  /// The product of the shape.
  Index elements() const;
};

/// Tensors of an unknown dtype are listed, and only their place in the file is checked.
/// @param dtype  the format's own name
/// @return bytes of one element; 0 if the dtype is unknown here
Index safetensors_element_bytes(const std::string& dtype);

/// The format's own name of a dtype: "F32", "BF16", "I64", ...
std::string safetensors_name(DType dtype);

/// A file that was read and checked in full: header, names, dtypes, shapes, places, overlap, total
/// size.
class SafetensorsFile {
 public:
  /// Reads and checks a file.
  /// @throws InputError if the file cannot be read or is not what the format asks for
  static SafetensorsFile open(const std::filesystem::path& path);

  /// In the order of their bytes. The views live as long as this object or one it was moved to.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  /// Finds a tensor by its name, in time O(log n).
  /// @return null if there is none; lives as long as tensors()
  const SafetensorsEntry* find(const std::string& name) const;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> tensors_;
  std::vector<std::size_t> by_name_;  // positions in tensors_, in the order of names
};

/// Writes a whole safetensors file into `file`, which the caller commits. Tensors are ordered by
/// the size of their elements, largest first, so that each is aligned.
/// @throws IoError if it cannot be written
/// @throws ContractError if a tensor's bytes are not what its shape and dtype say
void write_safetensors(OutputFile& file, std::span<const SafetensorsEntry> tensors);

}  // namespace sparsesync
