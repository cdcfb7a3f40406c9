// Reads untrusted input files, and reports errors in them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/views.h"

namespace sparsesync {

/// A file's bytes, copied into memory, so that later changes of the file have no effect. A move
/// keeps the address of the bytes.
class InputFile {
 public:
  /// Reads a whole file.
  /// @throws InputError if the file cannot be read or is not a regular file
  /// @throws IoError if the machine ran out of file descriptors or memory
  static InputFile read(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// A location in a file, for error messages of one line.
class InputPlace {
 public:
  /// Creates the location of the whole file.
  /// @param mend  advice for the user, such as "create the trace again"
  InputPlace(const std::filesystem::path& path, std::string mend);

  /// Returns the location of a part.
  /// @param part  a name that the format defines, in_quotes() of a name from the file, or "[3]" in
  ///              a list
  InputPlace at(std::string_view part) const;

  /// Reports an error at this location.
  /// @param what  begins with a verb: "is missing"
  /// @throws InputError "'FILE': PLACE WHAT; MEND", always
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  std::string file_;
  std::string parts_;  // "links.inter"; empty for the whole file
  std::string mend_;
};

/// Returns the bytes of an array. The other dimensions must not overflow even if one dimension is
/// 0.
/// @param shape  dimensions, none negative
/// @param element_bytes  bytes of an element, at least 1
/// @return no value if an Index cannot hold the result
std::optional<Index> array_bytes(std::span<const Index> shape, Index element_bytes);

}  // namespace sparsesync
