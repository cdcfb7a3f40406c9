// Inputs that traces are made from: text, and NumPy's .npy files of integers (token ids, fields).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/views.h"

namespace sparsesync {

/// An array of integers, rows one after another.
struct NpyArray {
  std::vector<std::int64_t> values;
  std::vector<Index> shape;  // one or two numbers
};

/// Reads versions 1, 2 and 3 of the format; integers of 1, 2, 4 or 8 bytes, signed or not,
/// little-endian; one or two dimensions, in C or Fortran order. Negative values are read: who uses
/// them refuses them.
/// @throws InputError if the file is not that; the text says what it is instead, and how to save it
NpyArray read_npy(const std::filesystem::path& path);

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
