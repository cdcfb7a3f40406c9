#include "engine/support/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/support/output_file.h"
#include "kernels/base/printable.h"
#include "sparsesync/errors.h"

namespace sparsesync {

InputFile InputFile::read(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("cannot read {}: {}", in_quotes(path.native()), what));
  };
  const auto fail_for = [&](int error, const std::string& mend) {
    if (!is_exhaustion(error)) fail(std::generic_category().message(error) + mend);
    throw IoError(
        fmt::format("cannot read {}: {}", in_quotes(path.native()), with_mend_of_system(error)));
  };
  // O_NONBLOCK, because opening a pipe without a writer would hang.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_for(errno, "; check the path and its permissions");
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail("it is not a regular file");
  }
  InputFile file;
  const auto size = static_cast<std::size_t>(status.st_size);
  file.data_ = std::make_unique_for_overwrite<std::byte[]>(size);
  while (file.size_ < size) {
    const ssize_t got = ::read(descriptor, file.data_.get() + file.size_, size - file.size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_for(errno, "");
    if (got == 0) break;  // the file became shorter: its present bytes count
    file.size_ += static_cast<std::size_t>(got);
  }
  return file;
}

InputPlace::InputPlace(const std::filesystem::path& path, std::string mend)
    : file_(in_quotes(path.native())), mend_(std::move(mend)) {}

InputPlace InputPlace::at(std::string_view part) const {
  InputPlace place = *this;
  if (!parts_.empty() && !part.starts_with('[')) place.parts_ += '.';
  place.parts_ += part;
  return place;
}

void InputPlace::refuse(std::string_view what) const {
  throw InputError(
      fmt::format("{}{}{} {}; {}", file_, parts_.empty() ? "" : ": ", parts_, what, mend_));
}

std::optional<Index> array_bytes(std::span<const Index> shape, Index element_bytes) {
  Index bytes = element_bytes;
  bool empty = false;
  for (const Index dimension : shape) {
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<Index>(dimension, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

}  // namespace sparsesync
