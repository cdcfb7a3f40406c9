// Files that are read and not trusted: their bytes, and how it is said what is wrong with them.
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

/// A file's bytes, in memory: a file that shrinks or changes later cannot hurt. The address of the
/// bytes stays the same when the object is moved.
class InputFile {
 public:
  /// @throws InputError if the file cannot be read or is not a regular file
  /// @throws IoError if the machine ran out of something: open files, memory
  static InputFile read(const std::filesystem::path& path);
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), size_}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

/// A place in a file, for the one line that says what is wrong there.
class InputPlace {
 public:
  /// The whole file.
  /// @param mend  what its user can do about it: "make the trace anew"
  InputPlace(const std::filesystem::path& path, std::string mend);

  /// What lies in this place.
  /// @param part  a name of the format's own; in_quotes() where the file chose it; "[3]" in a list
  InputPlace at(std::string_view part) const;

  /// @param what  begins with a verb: "is missing"
  /// @throws InputError "'FILE': PLACE WHAT; MEND", always
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  std::string file_;
  std::string parts_;  // "links.inter"; empty for the whole file
  std::string mend_;
};

/// Bytes of an array. Dimensions of 0 do not excuse the others.
/// @param shape  none negative
/// @param element_bytes  1 or more
/// @return nothing if they are more than an Index can count
std::optional<Index> array_bytes(std::span<const Index> shape, Index element_bytes);

}  // namespace sparsesync
