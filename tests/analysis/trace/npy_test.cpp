// .npy files: all integer types and both orders are read, and everything else is rejected in one
// line.
#include "analysis/trace/inputs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string text = header + "\n";
  std::string bytes = std::string("\x93NUMPY") + version + '\0';
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    bytes += static_cast<char>((text.size() >> (8U * i)) & 0xFFU);
  }
  return bytes + text + data;
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Npy : public testing::Test {
 protected:
  NpyArray read(const std::string& bytes) {
    write_all(path(), bytes);
    return read_npy(path());
  }
  void expect_refused(const std::string& bytes, const std::vector<std::string>& parts) {
    write_all(path(), bytes);
    expect_error<InputError>([&] { read_npy(path()); }, parts);
  }
  std::filesystem::path path() const { return scratch_ / "x.npy"; }
  Scratch scratch_;
};

TEST_F(Npy, ReadsAllIntegers) {
  const auto expect_type = [&]<typename T>(const std::string& descr, T) {
    const std::vector<T> values{0, 1, std::numeric_limits<T>::max() / 2, 7};
    const NpyArray array = read(npy(dictionary("'" + descr + "'", "(4,)"), raw(values)));
    EXPECT_EQ(array.shape, std::vector<Index>{4});
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(array.values.at(i), static_cast<std::int64_t>(values[i])) << descr;
    }
  };
  expect_type("|i1", std::int8_t{});
  expect_type("|u1", std::uint8_t{});
  expect_type("<i2", std::int16_t{});
  expect_type("<u2", std::uint16_t{});
  expect_type("<i4", std::int32_t{});
  expect_type("<u4", std::uint32_t{});
  expect_type("<i8", std::int64_t{});
  expect_type("<u8", std::uint64_t{});
}

TEST_F(Npy, ReadsNegativeNumbers) {
  EXPECT_EQ(read(npy(dictionary("'<i2'", "(2,)"), raw<std::int16_t>({-5, 3}))).values,
            (std::vector<std::int64_t>{-5, 3}));
}

TEST_F(Npy, ReadsAllVersionsAndOrders) {
  const std::string data = raw<std::int32_t>({1, 2, 3, 4, 5, 6});
  for (const char version : {'\1', '\2', '\3'}) {
    const NpyArray array = read(npy(dictionary("'<i4'", "(2, 3)"), data, version));
    EXPECT_EQ(array.shape, (std::vector<Index>{2, 3}));
    EXPECT_EQ(array.values, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  }
  EXPECT_EQ(read(npy(dictionary("'<i4'", "(2, 3)", "True"), data)).values,
            (std::vector<std::int64_t>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(read(npy(dictionary("'<i4'", "(6,)", "True"), data)).values,
            (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read(npy(R"({"shape":(6,),"fortran_order":False,"descr":"<i4"})", data)).values.size(),
            6U);
  EXPECT_EQ(read(npy(dictionary("'<i4'", "(0,)"), "")).values.size(), 0U);
}

TEST_F(Npy, RejectsFilesThatAreNotAnArrayOfIntegers) {
  const std::string four = raw<std::int32_t>({1});
  expect_refused("", {"not an .npy file", "numpy.save"});
  expect_refused("PK\x03\x04 a zip, as .npz files are", {"not an .npy file"});
  expect_refused("\x93NUMPY", {"not an .npy file"});
  expect_refused(npy(dictionary("'<i4'", "(1,)"), four, 4), {"version 4.0"});
  expect_refused(npy(dictionary("'<f4'", "(1,)"), four), {"floats (<f4)"});
  expect_refused(npy(dictionary("'<f8'", "(1,)"), four + four), {"floats"});
  expect_refused(npy(dictionary("'|O'", "(1,)"), four), {"Python objects"});
  expect_refused(npy(dictionary("'>i4'", "(1,)"), four), {"big-endian"});
  expect_refused(npy(dictionary("'|b1'", "(4,)"), four), {"not integers"});
  expect_refused(npy(dictionary("'<i3'", "(1,)"), four), {"not integers"});
  expect_refused(npy(dictionary("[('a', '<i4')]", "(1,)"), four), {"records"});
  expect_refused(npy(dictionary("'<i4'", "()"), four), {"0 dimensions"});
  expect_refused(npy(dictionary("'<i4'", "(1, 1, 1)"), four), {"3 dimensions"});
  expect_refused(npy(dictionary("'<i4'", "(2,)"), four), {"4 bytes of data", "needs 8"});
  expect_refused(npy(dictionary("'<i4'", "(1,)"), four + "x"), {"5 bytes of data"});
  expect_refused(npy(dictionary("'<i4'", "(9223372036854775807, 9)"), four),
                 {"needs more than can be counted"});
  expect_refused(npy(dictionary("'<i4'", "(99999999999999999999,)"), four), {"can be counted"});
  expect_refused(npy(dictionary("'<i4'", "(-1,)"), four), {"cannot be understood"});
  expect_refused(npy(dictionary("'<i4'", "(1,)", "Maybe"), four), {"cannot be understood"});
  expect_refused(npy("{'descr': '<i4', 'shape': (1,)}", four), {"cannot be understood"});
  expect_refused(npy("{'descr': '<i4'", four), {"cannot be understood"});
  expect_refused(npy("", four), {"cannot be understood"});
  expect_refused(npy(dictionary("'<i4'", "(1,)"), four).substr(0, 30), {"truncated"});
  expect_refused(npy(dictionary("'<u8'", "(2,)"), raw<std::uint64_t>({1, ~std::uint64_t{0}})),
                 {"position 1", "2^63"});
  expect_error<InputError>([&] { read_npy(scratch_ / "none.npy"); }, {"none.npy"});
  expect_error<InputError>([&] { read_npy(scratch_.path()); }, {"not a regular file"});
}

TEST_F(Npy, ChangedFilesAreReadOrRejected) {
  const std::string good =
      npy(dictionary("'<i4'", "(2, 3)"), raw<std::int32_t>({1, 2, 3, 4, 5, 6}));
  expect_changed_files_are_read_or_refused(good, [&](const std::string& bytes) {
    const NpyArray array = read(bytes);
    std::size_t product = 1;
    for (const Index dimension : array.shape) product *= static_cast<std::size_t>(dimension);
    ASSERT_EQ(array.values.size(), product);
  });
}

TEST_F(Npy, ReadsRealData) {
  if (real_data().empty()) GTEST_SKIP() << "the real index data is not available";
  EXPECT_EQ(read_npy(real_data() / "lm1b_tokens.npy").shape, std::vector<Index>{159'658});
  EXPECT_EQ(read_npy(real_data() / "criteo_fields.npy").shape, (std::vector<Index>{16'384, 26}));
}

}  // namespace
}  // namespace sparsesync
