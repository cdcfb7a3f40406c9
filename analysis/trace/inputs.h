// Inputs of traces: text, and NumPy's .npy files of integers (token ids, categorical fields).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// An array of integers in row-major order.
struct NpyArray {
  std::vector<std::int64_t> values;
  std::vector<Index> shape;  // one or two dimensions
};

/// Reads an .npy file of integers.
///
/// Supports versions 1, 2 and 3 of the format, and one or two dimensions in C or Fortran order.
/// Integers are little-endian, have 1, 2, 4 or 8 bytes, and are signed or unsigned. Negative values
/// are accepted here; callers reject them.
/// @throws InputError if the file is anything else; the message says what it is, and how to save it
NpyArray read_npy(const std::filesystem::path& path);

/// A text as ids in [0, rows). Id 0 is the most frequent word or mark. Words of equal frequency are
/// ordered by their bytes.
struct TextTokens {
  std::vector<std::int64_t> ids;   // in text order
  Index rows = 0;                  // number of ids
  std::vector<std::string> words;  // [id]; the last one is empty if `others` is true
  bool others = false;  // whether the last id represents all words outside the vocabulary
  Index files = 0;      // number of files read
};

/// Splits text into words and marks, and numbers them by frequency.
///
/// A *word* is a longest run of ASCII letters, digits, '_' and bytes from 0x80 on. A *mark* is any
/// other single character that is neither a space nor a control character.
/// @param paths  files of any name, or folders. All .py, .txt and .md files of a folder are read,
/// at
///               any depth, in the order of their paths. Links to folders are not followed
/// @param vocabulary  0: all words. V >= 1: if there are more than V distinct ones, the V - 1 most
///                    frequent keep their ids and all others share the id V - 1
/// @throws InputError if a file or folder cannot be read, or the text has no words
TextTokens tokenize(std::span<const std::filesystem::path> paths, Index vocabulary = 0);

}  // namespace sparsesync
