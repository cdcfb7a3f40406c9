// Atomic output: files and folders appear complete, or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"  // IWYU pragma: export

namespace sparsesync {

/// A file that appears under its name only when it is complete. It is written under a hidden name
/// in the same folder, and commit() renames it. The destructor removes an uncommitted file. An
/// existing path that is neither a regular file nor a folder (a pipe, a terminal, /dev/null) is
/// written directly.
class OutputFile {
 public:
  /// Creates the hidden file, or opens a path that is written directly.
  /// @param force  allow commit() to replace an existing file
  /// @throws InputError if the path exists and `force` is false, is a folder, or cannot be created
  /// @throws IoError for other system errors
  OutputFile(const std::filesystem::path& path, bool force);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Appends bytes. Small writes are buffered.
  /// @throws IoError if the system cannot write
  void write(std::span<const std::byte> bytes);
  /// Appends text.
  /// @throws IoError if the system cannot write
  void write(std::string_view text);

  /// Syncs the file to the disk, closes it and renames it. Nothing may be written afterwards. If an
  /// error occurs, the destructor removes the new file, and an existing file of that name is
  /// unchanged.
  /// @throws IoError if the system cannot write
  /// @throws InputError if the name was created meanwhile and `force` is false
  void commit();

 private:
  void flush_buffer();
  void write_through(const std::byte* data, std::size_t size);

  std::filesystem::path path_;
  std::filesystem::path staging_;  // empty: the path is written directly
  bool force_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
};

/// Names of files and folders that one kind of output folder may contain.
struct OwnNames {
  /// Name of a file that every such output folder has.
  std::string marker;
  /// Whether such an output folder may contain a file or folder of this relative path.
  std::function<bool(const std::filesystem::path&, bool is_folder)> has;
};

/// A folder that appears under its name only when it is complete, like OutputFile.
class OutputDirectory {
 public:
  /// Creates a hidden folder beside the path.
  /// @param force  allow commit() to replace an existing folder
  /// @param own    names that a replaced folder may contain. An empty folder may always be
  ///               replaced. A folder with any other name is never replaced, so that a wrong path
  ///               cannot delete unrelated files
  /// @throws InputError if the path exists and may not be replaced, or cannot be created
  /// @throws IoError for other system errors
  OutputDirectory(const std::filesystem::path& path, bool force, OwnNames own = {});
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  /// Returns the folder for files before commit().
  const std::filesystem::path& staging() const { return staging_; }

  /// Renames the folder. An existing folder is exchanged atomically, where the file system allows
  /// it, and then removed. If an error occurs, the destructor removes the new folder, and an
  /// existing folder of that name is unchanged.
  /// @throws IoError if the system cannot write
  /// @throws InputError if the name was created meanwhile and `force` is false, or the existing
  ///         folder now has files that may not be replaced
  void commit();

 private:
  /// Checks that the existing folder may be replaced.
  /// @throws InputError if the folder has a name that is not in `own_`
  /// @throws IoError if it cannot be listed
  void expect_replaceable() const;

  std::filesystem::path path_;
  std::filesystem::path staging_;
  bool force_;
  OwnNames own_;
  /// Reserved file descriptors. They are closed before folders are listed for removal, so that
  /// removal works even if no descriptor is free.
  std::vector<int> reserve_;
  bool committed_ = false;
};

/// Makes SIGINT, SIGTERM and SIGHUP remove uncommitted output before they end the program. Call it
/// once, before the first thread starts: threads inherit the signal mask. Ignored signals stay
/// ignored.
void remove_uncommitted_on_signals();

/// Whether an error number means that the machine or the process ran out of a resource, rather than
/// that the path is invalid.
bool is_exhaustion(int error);

/// Describes an error number, with advice if a resource ran out: "Too many open files; raise the
/// limit (ulimit -n)".
std::string with_mend_of_system(int error);

}  // namespace sparsesync
