// Files and folders that exist either whole or not at all.
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

/// A file that gets its name only when it is complete: it is written to a hidden sibling, and
/// renamed by commit(). The destructor removes what was not committed. A path that exists and is
/// neither a regular file nor a folder (a pipe, a terminal, /dev/null) is written to directly.
class OutputFile {
 public:
  /// Makes a hidden sibling of that path, or opens what is written to directly.
  /// @param force  replace a file of that name, at commit()
  /// @throws InputError if the path exists and `force` is false, is a folder, or cannot be created
  /// @throws IoError if the system fails otherwise
  OutputFile(const std::filesystem::path& path, bool force);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Appends; small writes are gathered.
  /// @throws IoError if the system cannot write
  void write(std::span<const std::byte> bytes);
  /// The same of text.
  void write(std::string_view text);

  /// Flushes to the disk, closes, and gives the file its name. Nothing may be written afterwards.
  /// If it fails, the destructor removes the file, and an old one of that name is as it was.
  /// @throws IoError if the system cannot write
  /// @throws InputError if something took the name meanwhile and `force` is false
  void commit();

 private:
  void flush_buffer();
  void write_through(const std::byte* data, std::size_t size);

  std::filesystem::path path_;
  std::filesystem::path staging_;  // empty: the path is written to directly
  bool force_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
};

/// The folders of one kind that a program writes: which names they have, and no others.
struct OwnNames {
  /// A file that each of them has.
  std::string marker;
  /// Whether they may have a file, or a folder, of that path, which is relative.
  std::function<bool(const std::filesystem::path&, bool is_folder)> has;
};

/// A folder that gets its name only when it is complete, as OutputFile does for a file.
class OutputDirectory {
 public:
  /// Makes a hidden sibling of that path.
  /// @param force  replace a folder of that name, at commit()
  /// @param own    names of the folder that may be replaced; an empty folder may be replaced
  ///               without. One that has anything else is left as it is: no slip of the hand
  ///               removes notes or a home.
  /// @throws InputError if the path exists and may not be replaced, or cannot be created
  /// @throws IoError if the system fails otherwise
  OutputDirectory(const std::filesystem::path& path, bool force, OwnNames own = {});
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  /// Where files go until commit().
  const std::filesystem::path& staging() const { return staging_; }

  /// Gives the folder its name; an old one is swapped out in the same instant and then removed.
  /// If it fails, the destructor removes the new folder, and an old one of that name is as it was.
  /// @throws IoError if the system cannot write
  /// @throws InputError if something took the name meanwhile and `force` is false, or it has files
  ///         now that may not be replaced
  void commit();

 private:
  /// @throws InputError if the folder of that name has anything that is not in `own_`
  /// @throws IoError if it cannot be listed
  void expect_replaceable() const;

  std::filesystem::path path_;
  std::filesystem::path staging_;
  bool force_;
  OwnNames own_;
  /// Given back before folders are listed in order to remove them: that works without a free
  /// descriptor, too.
  std::vector<int> reserve_;
  bool committed_ = false;
};

/// From now on SIGINT, SIGTERM and SIGHUP remove what is not committed before they end the program.
/// Call it once, before the first thread starts: all threads inherit the signal mask. Signals that
/// are ignored stay so.
void remove_uncommitted_on_signals();

/// Whether an error number says that the machine, or a limit of the process, has run out of
/// something: no fault of the path that was to be opened.
bool is_exhaustion(int error);

/// Describes an error number; where something ran out, with the mend: "Too many open files; raise
/// the limit (ulimit -n)".
std::string with_mend_of_system(int error);

}  // namespace sparsesync
