// Conversion of text to ids: exact ids of small texts, the order of folders, and unreadable input.
#include "analysis/trace/inputs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

using Ids = std::vector<std::int64_t>;
using Words = std::vector<std::string>;

TextTokens tokens_of(const std::string& text, Index vocabulary = 0) {
  const Scratch scratch;
  write_all(scratch / "t", text);
  const std::vector<std::filesystem::path> paths{scratch / "t"};
  return tokenize(paths, vocabulary);
}

TEST(Text, SplitsWordsAndMarks) {
  const TextTokens tokens = tokens_of("a_1 = f(a_1)+\t\x01 caf\xc3\xa9==x\n");
  // "=" occurs 3 times and "a_1" twice. The others occur once, in the order of their bytes: ( ) +
  // caf\xc3\xa9 f x
  EXPECT_EQ(tokens.words, (Words{"=", "a_1", "(", ")", "+", "caf\xc3\xa9", "f", "x"}));
  EXPECT_EQ(tokens.ids, (Ids{1, 0, 6, 2, 1, 3, 4, 5, 0, 0, 7}));
  EXPECT_EQ(tokens.rows, 8);
  EXPECT_FALSE(tokens.others);
  EXPECT_EQ(tokens.files, 1);
}

TEST(Text, VocabularyFoldsRareTokens) {
  const std::string text = "a a a b b c d";
  EXPECT_EQ(tokens_of(text, 4).ids, (Ids{0, 0, 0, 1, 1, 2, 3}));
  EXPECT_FALSE(tokens_of(text, 4).others);
  const TextTokens three = tokens_of(text, 3);
  EXPECT_EQ(three.ids, (Ids{0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(three.rows, 3);
  EXPECT_TRUE(three.others);
  EXPECT_EQ(three.words, (Words{"a", "b", ""}));
  EXPECT_EQ(tokens_of(text, 1).ids, Ids(7, 0));
  EXPECT_EQ(tokens_of(text, 1000).rows, 4);
}

TEST(Text, ReadsTheTextFilesOfAFolderInOrder) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "sub/deep");
  write_all(scratch / "z.py", "z");
  write_all(scratch / "sub/deep/m.txt", "m");
  write_all(scratch / "a.md", "a");
  write_all(scratch / "skipped.c", "c");
  const std::vector<std::filesystem::path> paths{scratch.path()};
  const TextTokens tokens = tokenize(paths);
  EXPECT_EQ(tokens.words, (Words{"a", "m", "z"}));
  EXPECT_EQ(tokens.ids, (Ids{0, 1, 2}));
  EXPECT_EQ(tokens.files, 3);
  // A file given by name is read whatever its extension. Tokens do not continue across files.
  const std::vector<std::filesystem::path> two{scratch / "skipped.c", scratch / "a.md"};
  EXPECT_EQ(tokenize(two).words, (Words{"a", "c"}));
}

TEST(Text, RejectsInputWithoutWords) {
  const Scratch scratch;
  write_all(scratch / "blank", " \n\t");
  std::filesystem::create_directory(scratch / "empty");
  const auto refuse = [&](const std::string& name, const std::vector<std::string>& parts) {
    const std::vector<std::filesystem::path> paths{scratch / name};
    expect_error<InputError>([&] { tokenize(paths); }, parts);
  };
  refuse("blank", {"no words"});
  refuse("empty", {"no .py, .txt or .md"});
  refuse("none", {"none", "No such file"});
  expect_error<InputError>([&] { tokenize({}); }, {"no words"});
  expect_error<InputError>([&] { tokens_of("a", -1); }, {"-1"});
  mkfifo((scratch / "pipe").c_str(), 0600);
  refuse("pipe", {"not a regular file"});
  if (geteuid() == 0) GTEST_SKIP() << "the superuser can read every file";
  write_all(scratch / "secret", "a");
  std::filesystem::permissions(scratch / "secret", std::filesystem::perms::none);
  refuse("secret", {"Permission denied"});
}

TEST(Text, ReadsPythonsLibrary) {
  const std::filesystem::path library = "/usr/lib/python3.11";
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "no " << library << " here";
  const std::vector<std::filesystem::path> paths{library};
  const TextTokens tokens = tokenize(paths);
  Ids counts(static_cast<std::size_t>(tokens.rows), 0);
  for (const std::int64_t id : tokens.ids) ++counts.at(static_cast<std::size_t>(id));
  EXPECT_TRUE(std::is_sorted(counts.rbegin(), counts.rend()));
  EXPECT_GT(counts.back(), 0);
}

}  // namespace
}  // namespace sparsesync
