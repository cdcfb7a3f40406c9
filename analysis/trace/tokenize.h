// Text into token ids: words and punctuation marks, the most frequent first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// A text as ids in [0, rows): 0 is the most frequent word or mark, ties in the order of their
/// bytes.
struct TextTokens {
  std::vector<std::int64_t> ids;   // in text order
  Index rows = 0;                  // ids that exist
  std::vector<std::string> words;  // words[id]; the last one is empty where `others` is true
  bool others = false;  // whether the last id stands for all that the vocabulary left out
  Index files = 0;      // that were read
};

/// Splits text into *words* (the longest runs of ASCII letters, digits, '_' and bytes from 0x80 on)
/// and *marks* (every other character that is neither space nor control character, one by one).
/// @param paths  files of any name, or folders, of which all .py, .txt and .md files at any depth
///               are taken in the order of their paths; links to folders inside are not followed
/// @param vocabulary  0: all words. V >= 1: if there are more than V distinct ones, the V - 1 most
///                    frequent keep their ids and all others share the id V - 1
/// @throws InputError if something cannot be read, or there is no word at all
TextTokens tokenize(std::span<const std::filesystem::path> paths, Index vocabulary = 0);

}  // namespace sparsesync
