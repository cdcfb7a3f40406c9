#include "analysis/trace/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <system_error>
#include <unordered_map>

#include "engine/support/input_file.h"
#include "engine/support/output_file.h"
#include "kernels/base/printable.h"
#include "sparsesync/errors.h"

namespace sparsesync {
namespace {

namespace fs = std::filesystem;

enum class Kind : std::uint8_t { space, word, mark };

constexpr std::array<Kind, 256> make_kinds() {
  std::array<Kind, 256> kinds{};
  for (std::size_t c = 0; c < 256; ++c) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c >= 0x80;
    const bool space = c <= ' ' || c == 0x7F;
    kinds[c] = word ? Kind::word : space ? Kind::space : Kind::mark;
  }
  return kinds;
}
constexpr std::array<Kind, 256> kKinds = make_kinds();

Kind kind_of(char c) {
  return kKinds[static_cast<unsigned char>(c)];
}

template <typename Visit>
void for_each_token(std::string_view text, Visit&& visit) {
  std::size_t i = 0;
  while (i < text.size()) {
    const Kind kind = kind_of(text[i]);
    std::size_t end = i + 1;
    if (kind == Kind::word) {
      while (end < text.size() && kind_of(text[end]) == Kind::word) ++end;
    }
    if (kind != Kind::space) visit(text.substr(i, end - i));
    i = end;
  }
}

bool is_text_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".py" || extension == ".txt" || extension == ".md";
}

std::vector<fs::path> files_of(std::span<const fs::path> paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);  // reading it reports any problem
      continue;
    }
    const std::size_t first = files.size();
    fs::recursive_directory_iterator entry(path, error);
    while (!error && entry != fs::recursive_directory_iterator()) {
      std::error_code gone;
      if (is_text_file(entry->path()) && entry->is_regular_file(gone))
        files.push_back(entry->path());
      entry.increment(error);
    }
    if (error && is_exhaustion(error.value())) {
      throw IoError(fmt::format("cannot read the whole folder {}: {}", in_quotes(path.native()),
                                with_mend_of_system(error.value())));
    }
    if (error) {
      throw InputError(fmt::format("cannot read the whole folder {}: {}; check its permissions",
                                   in_quotes(path.native()), error.message()));
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end(),
              [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    if (files.size() == first) {
      throw InputError(
          fmt::format("the folder {} has no .py, .txt or .md files; name files or a folder "
                      "that contains some",
                      in_quotes(path.native())));
    }
  }
  return files;
}

}  // namespace

TextTokens tokenize(std::span<const fs::path> paths, Index vocabulary) {
  if (vocabulary < 0) {
    throw InputError(
        fmt::format("a vocabulary of {} words: give 1 or more, or none for all words", vocabulary));
  }
  TextTokens result;
  std::vector<InputFile> files;  // owns the text of the words below
  std::unordered_map<std::string_view, std::int64_t> seen;
  std::vector<std::string_view> words;  // in order of appearance, like `counts`
  std::vector<Index> counts;
  for (const fs::path& path : files_of(paths)) {
    const InputFile& file = files.emplace_back(InputFile::read(path));
    for_each_token(file.text(), [&](std::string_view token) {
      const auto [entry, is_new] = seen.try_emplace(token, std::ssize(words));
      if (is_new) {
        words.push_back(token);
        counts.push_back(0);
      }
      ++counts[static_cast<std::size_t>(entry->second)];
      result.ids.push_back(entry->second);
    });
  }
  result.files = std::ssize(files);
  if (result.ids.empty()) {
    throw InputError(fmt::format("no words in the {} file{} read; name a text with words",
                                 files.size(), files.size() == 1 ? "" : "s"));
  }

  std::vector<std::size_t> order(words.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : words[a] < words[b];
  });
  const auto distinct = std::ssize(words);
  result.others = vocabulary > 0 && distinct > vocabulary;
  result.rows = result.others ? vocabulary : distinct;
  const Index named = result.others ? vocabulary - 1 : distinct;
  std::vector<std::int64_t> id_of(words.size(), result.rows - 1);
  for (Index id = 0; id < named; ++id) {
    const std::size_t word = order[static_cast<std::size_t>(id)];
    id_of[word] = id;
    result.words.emplace_back(words[word]);
  }
  if (result.others) result.words.emplace_back();
  for (std::int64_t& id : result.ids) id = id_of[static_cast<std::size_t>(id)];
  return result;
}

}  // namespace sparsesync
