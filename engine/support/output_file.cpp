#include "engine/support/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/printable.h"
#include "kernels/base/threads.h"

namespace sparsesync {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{1} << 18U;

/// Uncommitted paths on the disk. Code that creates or renames a path holds the lock. The clean-up
/// after a signal takes the lock and never releases it, so nothing is created after it.
struct Uncommitted {
  std::mutex mutex;
  std::set<fs::path> paths;
};
Uncommitted& uncommitted() {
  static auto* const instance =
      new Uncommitted;  // never destroyed, because the signal thread may outlive main
  return *instance;
}

[[noreturn]] void throw_cannot_write(const fs::path& path, int error) {
  throw IoError(
      fmt::format("cannot write {}: {}", in_quotes(path.native()), with_mend_of_system(error)));
}

/// Throws InputError for errors that another path avoids, and IoError for the state of the machine.
[[noreturn]] void throw_cannot_create(const fs::path& path, int error) {
  const std::string text =
      fmt::format("cannot create {}: {}", in_quotes(path.native()), with_mend_of_system(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
      throw InputError(text + "; name a path in a folder that exists and can be written to");
    default:
      throw IoError(text);
  }
}

/// Normalizes a path and removes a trailing slash, so that its last part is a name.
fs::path named(const fs::path& path) {
  fs::path clean = path.lexically_normal();
  if (clean.filename().empty()) clean = clean.parent_path();
  const fs::path last = clean.filename();
  if (last.empty() || last == "." || last == "..") {
    throw InputError(fmt::format("{} cannot be written: it is not a name for a new file or folder",
                                 in_quotes(path.native())));
  }
  return clean;
}

fs::path staging_name(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  // The name is truncated, so that the hidden name never exceeds the file system's limit.
  return path.parent_path() / fmt::format(".{}.partial-{}-{}",
                                          path.filename().string().substr(0, 200), getpid(),
                                          counter.fetch_add(1));
}

void sync_folder(const fs::path& folder) {
  const fs::path name = folder.empty() ? fs::path(".") : folder;
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // a writable folder without read permission cannot be synced
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  if (failed != 0 && failed != EINVAL) throw_cannot_write(folder, failed);
}

// Each function returns an error number, or 0.

/// Renames a path and replaces an existing target.
int rename_over(const fs::path& from, const fs::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

/// Renames unless the target exists.
int rename_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // The file system lacks the flag: check, then rename.
  struct stat status {};
  if (::lstat(to.c_str(), &status) == 0) return EEXIST;
  return rename_over(from, to);
}

/// Exchanges the names of two folders.
int exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return 0;
  // The file system cannot exchange names: use a third name, and undo the first rename if the
  // second one fails.
  const fs::path aside = staging_name(b);
  if (const int failed = rename_over(b, aside); failed != 0) return failed;
  const int failed = rename_over(a, b);
  rename_over(aside, failed == 0 ? a : b);
  return failed;
}

void give_back(std::vector<int>& descriptors) {
  for (const int descriptor : descriptors) ::close(descriptor);
  descriptors.clear();
}

/// Explains why a folder may not be replaced.
/// @return the reason, such as "has 'notes.txt', ..."; empty if it may be replaced
std::string replaceable_problem(const fs::path& folder, const OwnNames& own) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return "is not a folder";
  std::set<fs::path> foreign;
  bool is_empty = true;
  bool is_marked = false;
  fs::recursive_directory_iterator entry(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    const fs::path name = entry->path().lexically_relative(folder);
    std::error_code gone;
    const fs::file_status status = entry->symlink_status(gone);
    const bool is_folder = fs::is_directory(status);
    const bool is_ours =
        (is_folder || fs::is_regular_file(status)) && own.has && own.has(name, is_folder);
    if (!is_ours) foreign.insert(name);
    if (!is_ours && is_folder) entry.disable_recursion_pending();
    is_empty = false;
    is_marked = is_marked || name == own.marker;
    entry.increment(error);
  }
  if (error) {
    throw IoError(fmt::format("cannot list {}: {}", in_quotes(folder.native()),
                              with_mend_of_system(error.value())));
  }
  if (is_empty) return "";
  if (own.marker.empty()) return "is a folder that is not empty";
  if (!is_marked) {
    return fmt::format("is not a folder that this command makes (it has no {})", own.marker);
  }
  if (foreign.empty()) return "";
  return fmt::format("has {}, which this command did not write",
                     in_quotes(foreign.begin()->native()));
}

[[noreturn]] void throw_exists(const fs::path& path) {
  throw InputError(
      fmt::format("{} exists: name another, or replace it with --force", in_quotes(path.native())));
}

}  // namespace

OutputFile::OutputFile(const fs::path& path, bool force) : path_(path), force_(force) {
  struct stat status {};
  if (!path.empty() && ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) {
      throw InputError(fmt::format("{} is a folder: name a file", in_quotes(path.native())));
    }
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) throw_cannot_create(path, errno);
    return;
  }
  path_ = named(path);
  if (::lstat(path_.c_str(), &status) != 0) {
    if (errno != ENOENT) throw_cannot_create(path_, errno);
  } else if (!force) {
    throw_exists(path_);
  }
  staging_ = staging_name(path_);
  const std::lock_guard lock(uncommitted().mutex);
  descriptor_ = ::open(staging_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_cannot_create(path_, errno);
  uncommitted().paths.insert(staging_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (staging_.empty()) return;
  const std::lock_guard lock(uncommitted().mutex);
  ::unlink(staging_.c_str());
  uncommitted().paths.erase(staging_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  SPARSESYNC_EXPECT(descriptor_, >=, 0);
  if (bytes.size() >= kBufferBytes) {
    flush_buffer();
    write_through(bytes.data(), bytes.size());
    return;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush_buffer();
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void OutputFile::flush_buffer() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::write_through(const std::byte* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_cannot_write(path_, errno);
    }
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

void OutputFile::commit() {
  SPARSESYNC_EXPECT(descriptor_, >=, 0);
  flush_buffer();
  int failed = 0;
  if (!staging_.empty() && ::fsync(descriptor_) != 0) failed = errno;
  if (::close(std::exchange(descriptor_, -1)) != 0 && failed == 0) failed = errno;
  if (failed != 0) throw_cannot_write(path_, failed);
  if (staging_.empty()) return;
  {
    const std::lock_guard lock(uncommitted().mutex);
    failed = force_ ? rename_over(staging_, path_) : rename_new(staging_, path_);
    if (failed == 0) {
      uncommitted().paths.erase(staging_);
      staging_.clear();
    }
  }
  if (failed == EEXIST) throw_exists(path_);
  if (failed != 0) throw_cannot_write(path_, failed);
}

OutputDirectory::OutputDirectory(const fs::path& path, bool force, OwnNames own)
    : path_(named(path)), force_(force), own_(std::move(own)) {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) {
    if (!force) throw_exists(path_);
    expect_replaceable();
  } else if (errno != ENOENT) {
    throw_cannot_create(path_, errno);
  }
  staging_ = staging_name(path_);
  const std::lock_guard lock(uncommitted().mutex);
  if (::mkdir(staging_.c_str(), 0777) != 0) throw_cannot_create(path_, errno);
  // Removal opens one descriptor for each of the 2 folder levels.
  for (int i = 0; i < 2; ++i) {
    const int descriptor = ::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
      const int error = errno;
      give_back(reserve_);
      ::rmdir(staging_.c_str());
      throw_cannot_create(path_, error);
    }
    reserve_.push_back(descriptor);
  }
  uncommitted().paths.insert(staging_);
}

OutputDirectory::~OutputDirectory() {
  give_back(reserve_);
  if (committed_) return;
  const std::lock_guard lock(uncommitted().mutex);
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
  uncommitted().paths.erase(staging_);
}

void OutputDirectory::expect_replaceable() const {
  const std::string refusal = replaceable_problem(path_, own_);
  if (refusal.empty()) return;
  throw InputError(fmt::format("{} exists and {}: --force does not replace it, name another",
                               in_quotes(path_.native()), refusal));
}

void OutputDirectory::commit() {
  SPARSESYNC_EXPECT(committed_, ==, false);
  give_back(reserve_);
  sync_folder(staging_);
  int failed = 0;
  bool replaced = false;
  struct stat status {};
  if (force_ && ::lstat(path_.c_str(), &status) == 0) expect_replaceable();
  {
    const std::lock_guard lock(uncommitted().mutex);
    failed = rename_new(staging_, path_);
    if (failed == EEXIST && force_) {
      replaced = true;
      failed = exchange(staging_, path_);
    }
    if (failed == 0) {
      committed_ = true;
      if (!replaced) uncommitted().paths.erase(staging_);
    }
  }
  if (failed == EEXIST) throw_exists(path_);
  if (failed != 0) throw_cannot_write(path_, failed);
  if (replaced) {  // the staging name now holds the old folder
    std::error_code error;
    fs::remove_all(staging_, error);
    const std::lock_guard lock(uncommitted().mutex);
    uncommitted().paths.erase(staging_);
    if (error) {
      throw IoError(
          fmt::format("{} is written, but the one that it replaces could not be removed: {}",
                      in_quotes(path_.native()), error.message()));
    }
  }
  sync_folder(path_.parent_path());
}

void remove_uncommitted_on_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
      sigaddset(&caught, number);
    }
  }
  if (sigisemptyset(&caught) || pthread_sigmask(SIG_BLOCK, &caught, nullptr) != 0) return;
  // A thread that waits for signals may lock, list folders and remove files, unlike a signal
  // handler.
  start_thread("the thread that waits for signals", [caught] {
    int number = 0;
    if (sigwait(&caught, &number) != 0) return;
    uncommitted().mutex.lock();  // never unlocked: nothing is created or renamed afterwards
    for (const fs::path& path : uncommitted().paths) {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(number);
  }).detach();
}

namespace {

struct Mend {
  int error;
  const char* text;
};

constexpr std::array kMends{
    Mend{EMFILE, "; raise the limit of this process (ulimit -n)"},
    Mend{ENFILE, "; close other programs, or raise the machine's limit (fs.file-max)"},
    Mend{ENOSPC, "; free space on the disk, or name a path on another disk"},
    Mend{EDQUOT, "; free space within the quota, or name a path on another disk"},
    Mend{EFBIG, "; raise the limit of file sizes (ulimit -f), or name a path on another disk"},
    Mend{ENOMEM, "; close other programs, or use a smaller input"},
};

const Mend* mend_of(int error) {
  for (const Mend& mend : kMends) {
    if (mend.error == error) return &mend;
  }
  return nullptr;
}

}  // namespace

bool is_exhaustion(int error) {
  return mend_of(error) != nullptr;
}

std::string with_mend_of_system(int error) {
  const Mend* mend = mend_of(error);
  return std::generic_category().message(error) + (mend == nullptr ? "" : mend->text);
}

}  // namespace sparsesync
