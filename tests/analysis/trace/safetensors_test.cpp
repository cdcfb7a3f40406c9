// The safetensors format: files survive a round trip, and inconsistent files are rejected.
#include "analysis/trace/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

/// Builds a file from a header and data. The length in front of the header is correct unless
/// `length` is given.
std::string file_of(const std::string& header, const std::string& data,
                    std::uint64_t length = ~std::uint64_t{0}) {
  if (length == ~std::uint64_t{0}) length = header.size();
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>((length >> (8U * i)) & 0xFFU);
  return bytes + header + data;
}

class Safetensors : public testing::Test {
 protected:
  SafetensorsFile open(const std::string& bytes) {
    write_all(path(), bytes);
    return SafetensorsFile::open(path());
  }
  void expect_refused(const std::string& bytes, const std::vector<std::string>& parts) {
    write_all(path(), bytes);
    expect_error<InputError>([&] { SafetensorsFile::open(path()); }, parts);
  }
  std::filesystem::path path() const { return scratch_ / "x.safetensors"; }
  Scratch scratch_;
};

std::string sample(const Scratch& scratch) {
  const std::vector<std::int32_t> indices{7, 1, 4};
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> wide{std::int64_t{1} << 40U};
  const std::vector<SafetensorsEntry> entries{
      {"a.indices", "I32", {3}, std::as_bytes(std::span(indices))},
      {"a.values", "F32", {3, 2}, std::as_bytes(std::span(values))},
      {"wide", "I64", {1}, std::as_bytes(std::span(wide))},
      {"empty", "BF16", {0, 5}, {}}};
  OutputFile file(scratch / "sample", true);
  write_safetensors(file, entries);
  file.commit();
  return read_all(scratch / "sample");
}

TEST_F(Safetensors, HasANameForEveryDtype) {
  EXPECT_EQ(safetensors_name(DType::f32), "F32");
  EXPECT_EQ(safetensors_name(DType::bf16), "BF16");
  EXPECT_EQ(safetensors_name(DType::i64), "I64");
  for (const DType dtype : kDTypes) {
    EXPECT_EQ(safetensors_element_bytes(safetensors_name(dtype)), element_bytes(dtype));
  }
}

TEST_F(Safetensors, SurvivesARoundTrip) {
  const SafetensorsFile file = open(sample(scratch_));
  ASSERT_EQ(file.tensors().size(), 4U);
  const SafetensorsEntry* indices = file.find("a.indices");
  ASSERT_NE(indices, nullptr);
  EXPECT_EQ(indices->dtype, "I32");
  EXPECT_EQ(indices->shape, std::vector<Index>{3});
  ASSERT_EQ(indices->bytes.size(), 12U);
  EXPECT_EQ(std::to_integer<int>(indices->bytes[0]), 7);
  EXPECT_EQ(std::to_integer<int>(file.find("wide")->bytes[5]), 1);
  EXPECT_EQ(file.find("empty")->elements(), 0);
  EXPECT_EQ(file.find("nothing"), nullptr);
  // Alignment: the header's length and each tensor's offset are multiples of the element size.
  const std::string bytes = read_all(scratch_ / "sample");
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
  EXPECT_EQ((indices->bytes.data() - file.find("wide")->bytes.data()) % 4, 0);
}

TEST_F(Safetensors, ViewsOutliveAMove) {
  SafetensorsFile first = open(sample(scratch_));
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(std::to_integer<int>(second.find("a.indices")->bytes[4]), 1);
}

TEST_F(Safetensors, WritesTheFormatByteForByte) {
  const std::vector<std::int32_t> one{258};
  const std::vector<SafetensorsEntry> entries{{"n", "I32", {1}, std::as_bytes(std::span(one))}};
  OutputFile file(path(), false);
  write_safetensors(file, entries);
  file.commit();
  std::string header = R"({"n":{"data_offsets":[0,4],"dtype":"I32","shape":[1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_all(path()), file_of(header, std::string("\x02\x01\0\0", 4)));
}

TEST_F(Safetensors, AcceptsMetadataUnknownDtypesAndNumbers) {
  const SafetensorsFile file = open(file_of(
      R"({"__metadata__":{"format":"pt"},"q":{"dtype":"NEW4","shape":[3],"data_offsets":[0,2]},)"
      R"("n":{"dtype":"F64","shape":[],"data_offsets":[2,10]}})",
      std::string(10, '\0')));
  EXPECT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(safetensors_element_bytes("NEW4"), 0);
  EXPECT_EQ(file.find("n")->elements(), 1);
  EXPECT_EQ(open(file_of("{}", "")).tensors().size(), 0U);
}

TEST_F(Safetensors, ReadsManyNames) {
  // In quadratic time, this would take nearly an hour and exceed the timeout of ctest.
  constexpr int kTensors = 200'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += i == 0 ? "" : ",";
    header += fmt::format(R"("t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i);
  }
  const SafetensorsFile file = open(file_of(header + "}", ""));
  ASSERT_EQ(file.tensors().size(), std::size_t{kTensors});
  for (int i = 0; i < kTensors; ++i) {
    const std::string name = fmt::format("t{}", i);
    const SafetensorsEntry* found = file.find(name);
    ASSERT_NE(found, nullptr) << name;
    ASSERT_EQ(found->name, name);
  }
  header += fmt::format(R"(,"t{}":1}})", kTensors / 2);
  expect_refused(file_of(header, ""), {"has the name 't100000' twice in one object"});
}

TEST_F(Safetensors, RejectsDeepValuesAnywhere) {
  const auto nested = [](std::size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  const auto with_dtype = [](const std::string& dtype) {
    return file_of(R"({"a":{"shape":[0],"data_offsets":[0,0],"dtype":)" + dtype + "}}", "");
  };
  expect_refused(with_dtype(nested(100'000)), {"nests values more than 64 deep"});
  expect_refused(with_dtype(nested(63)), {"nests values more than 64 deep"});
  expect_refused(with_dtype(nested(62)), {"'a'.dtype is a list of 1, not a text"});
  expect_refused(with_dtype(R"({"b":1})"), {"'a'.dtype is an object, not a text"});
}

TEST_F(Safetensors, RejectsInvalidJsonThatSomeParsersAccept) {
  expect_refused(file_of(std::string("{}\0anything", 11), ""), {"not valid JSON (at byte 3)"});
  expect_refused(file_of(std::string("{}\0", 3), ""), {"not valid JSON (at byte 3)"});
  expect_refused(file_of("\xEF\xBB\xBF{}", ""), {"byte order mark"});
  expect_refused(file_of(R"({"a":1,"a":1})", ""), {"has the name 'a' twice in one object"});
  EXPECT_EQ(open(file_of("{}   ", "")).tensors().size(), 0U);
}

TEST_F(Safetensors, RejectsInconsistentHeaders) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string eight(8, '\0');
  expect_refused("", {"not a safetensors file"});
  expect_refused("1234567", {"not a safetensors file"});
  expect_refused(file_of("{}", "", 3), {"truncated"});
  expect_refused(file_of("{}", "", ~std::uint64_t{0} - 1), {"truncated"});
  expect_refused(file_of("{}", "", 100'000'001), {"truncated"});
  expect_refused(file_of("[]", ""), {"header is a list of 0, not an object"});
  expect_refused(file_of("{", ""), {"not valid JSON"});
  expect_refused(file_of("{} {}", ""), {"not valid JSON"});
  expect_refused(file_of("{\"\xff\":1}", ""), {"not valid JSON"});
  expect_refused(file_of(std::string(100'000, '['), ""), {"nests values more than 64 deep"});
  expect_refused(file_of(std::string(100'000, '[') + std::string(100'000, ']'), ""),
                 {"nests values more than 64 deep"});
  expect_refused(file_of(R"({"a":1})", ""), {"'a' is 1, not an object"});
  expect_refused(file_of(R"({"a":{"dtype":"I32","shape":[2]}})", eight),
                 {"'a'.data_offsets is missing"});
  expect_refused(file_of(R"({"__metadata__":{"a":1}})", ""), {"__metadata__"});
  expect_refused(file_of(entry("3", "[2]", "[0,8]"), eight), {"'a'.dtype is 3, not a text"});
  expect_refused(file_of(entry("\"I32\"", "2", "[0,8]"), eight), {"'a'.shape is 2, not a list"});
  expect_refused(file_of(entry("\"I32\"", "[2.0]", "[0,8]"), eight),
                 {"shape[0] is 2.0, not a whole number"});
  expect_refused(file_of(entry("\"I32\"", "[NaN]", "[0,8]"), eight), {"not valid JSON"});
  expect_refused(file_of(entry("\"I32\"", "[-2]", "[0,8]"), eight),
                 {"shape[0] is -2, not a whole number"});
  expect_refused(file_of(entry("\"I32\"", "[1e999]", "[0,8]"), eight), {"not valid JSON"});
  expect_refused(file_of(entry("\"I32\"", "[18446744073709551615]", "[0,8]"), eight),
                 {"not a whole number"});
  expect_refused(file_of(entry("\"I32\"", "[3]", "[0,8]"), eight), {"does not match"});
  expect_refused(file_of(entry("\"I32\"", "[4611686018427387906]", "[0,8]"), eight),
                 {"can be counted"});
  expect_refused(file_of(entry("\"I32\"", "[4294967296,4294967296,4]", "[0,8]"), eight),
                 {"can be counted"});
  expect_refused(file_of(entry("\"I32\"", "[0,9223372036854775807,9]", "[0,0]"), ""),
                 {"can be counted"});
  expect_refused(file_of(entry("\"I32\"", "[2]", "[0,8,9]"), eight),
                 {"data_offsets is a list of 3, not a list of 2"});
  expect_refused(file_of(entry("\"I32\"", "[2]", "[8,0]"), eight), {"ends before it begins"});
  expect_refused(file_of(entry("\"I32\"", "[2]", "[0,8]"), "1234567"), {"truncated"});
  expect_refused(file_of(entry("\"I32\"", "[2]", "[0,8]"), eight + "9"), {"belong to no tensor"});
  expect_refused(file_of(entry("\"I32\"", "[1]", "[4,8]"), eight), {"gap"});
  const std::string a = R"("a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]})";
  expect_refused(file_of("{" + a + "," + a + "}", "1234"), {"the name 'a' twice"});
  expect_refused(
      file_of("{" + a + R"(,"b":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", "1234"),
      {"overlaps"});
}

TEST_F(Safetensors, RejectsPathsThatAreNotFiles) {
  expect_error<InputError>([&] { SafetensorsFile::open(scratch_ / "none"); },
                           {"none", "No such file"});
  expect_error<InputError>([&] { SafetensorsFile::open(scratch_.path()); }, {"not a regular file"});
}

TEST_F(Safetensors, HostileNamesStayOnOneShortLine) {
  const std::string name = "a\\n\\u001b[31m" + std::string(5000, 'x');
  const std::string text = [&] {
    write_all(path(), file_of("{\"" + name + "\":1}", ""));
    return error_of<InputError>([&] { SafetensorsFile::open(path()); });
  }();
  EXPECT_LT(text.size(), 400U);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST_F(Safetensors, ChangedFilesAreReadOrRejected) {
  expect_changed_files_are_read_or_refused(sample(scratch_), [&](const std::string& bytes) {
    std::int64_t sum = 0;
    const SafetensorsFile file = open(bytes);
    for (const SafetensorsEntry& entry : file.tensors()) {
      for (const std::byte byte : entry.bytes) sum += std::to_integer<int>(byte);
    }
    ASSERT_GE(sum, 0);
  });
}

}  // namespace
}  // namespace sparsesync
