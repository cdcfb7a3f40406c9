// Reading what is not trusted: whole files, and JSON in which every kind is checked.
#include "analysis/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <system_error>
#include <vector>

#include "analysis/quote.h"

namespace sparsesync {

FileBytes FileBytes::read(const std::filesystem::path& path) {
  // Not blocking: opening a pipe that nobody writes to must not hang.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw InputError(fmt::format("cannot read {}: {}; check the path and its permissions",
                                 shown_path(path), std::generic_category().message(errno)));
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw InputError(fmt::format("cannot read {}: it is not a regular file", shown_path(path)));
  }
  FileBytes file;
  const auto size = static_cast<std::size_t>(status.st_size);
  file.data_ = std::make_unique_for_overwrite<std::byte[]>(size);
  while (file.size_ < size) {
    const ssize_t got = ::read(descriptor, file.data_.get() + file.size_, size - file.size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw InputError(fmt::format("cannot read {}: {}", shown_path(path),
                                   std::generic_category().message(errno)));
    }
    if (got == 0) break;  // it shrank meanwhile: what is there is what counts
    file.size_ += static_cast<std::size_t>(got);
  }
  return file;
}

std::string shown_path(const std::filesystem::path& path) {
  return fmt::format("'{}'", printable(path.string()));
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::optional<std::string> twice;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == nlohmann::json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == nlohmann::json::parse_event_t::key) {
      const auto name = parsed.get<std::string>();
      if (!names.back().insert(name).second && !twice) twice = name;
    }
    return true;
  };
  nlohmann::json result;
  try {
    result = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    throw InputError(
        fmt::format("{} is not valid JSON (at byte {}); make the file anew", where, error.byte));
  } catch (const nlohmann::json::exception&) {  // such as a number that no type holds
    throw InputError(fmt::format("{} is not valid JSON; make the file anew", where));
  }
  if (twice) {
    throw InputError(fmt::format("{} has the name '{}' twice in one object; make the file anew",
                                 where, printable(*twice)));
  }
  return result;
}

std::optional<std::int64_t> whole_number(const nlohmann::json& value, std::int64_t minimum,
                                         std::int64_t maximum) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return std::nullopt;
  }
  const auto number = value.get<std::int64_t>();
  if (number < minimum || number > maximum) return std::nullopt;
  return number;
}

}  // namespace sparsesync
