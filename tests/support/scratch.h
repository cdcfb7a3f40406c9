// Support for tests of files: a temporary folder, whole files, error messages, and randomly
// corrupted files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace sparsesync {

/// A temporary folder that the destructor removes.
class Scratch {
 public:
  Scratch() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("sparsesync-test-" + std::to_string(getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  /// Returns the sorted names in the folder, including hidden ones.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_all(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  ASSERT_TRUE(file.good()) << path;
}

/// Returns the message of the `Expected` exception that `body` throws. Fails the test for any other
/// outcome.
template <typename Expected, typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Expected& error) {
    std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << "more than one line: " << text;
    return text;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error than expected: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// Expects that `body` throws `Expected`, and that the message contains each of `parts`.
template <typename Expected, typename Body>
void expect_error(Body&& body, const std::vector<std::string>& parts) {
  const std::string text = error_of<Expected>(body);
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
  }
}

/// Changes bytes of a valid file at random, 1000 times. Each time, `read`(bytes) must either
/// succeed or throw an InputError of one line. More than a fifth must throw.
template <typename Read>
void expect_changed_files_are_read_or_refused(const std::string& good, Read&& read) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    if (round % 4 == 0) bytes.resize(random() % bytes.size());
    for (unsigned i = 0; i <= random() % 3 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() & 0xFFU);
    }
    try {
      ASSERT_NO_FATAL_FAILURE(read(bytes));
    } catch (const InputError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(refused, 200);
}

/// Returns the folder of the real index data, or an empty path if it is not available.
inline std::filesystem::path real_data() {
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread
  const char* const given = std::getenv("SPARSESYNC_DATA");
  const char* const sources = std::getenv("SPARSESYNC_SOURCE_DIR");
  // NOLINTEND(concurrency-mt-unsafe)
  const std::filesystem::path path =
      given != nullptr
          ? std::filesystem::path(given)
          : std::filesystem::path(sources != nullptr ? sources : ".") / ".." / "shared" / "data";
  return std::filesystem::exists(path / "lm1b_tokens.npy") ? path : std::filesystem::path();
}

}  // namespace sparsesync
