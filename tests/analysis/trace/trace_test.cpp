// Traces: they survive a round trip, and errors in broken traces name the location.
#include "analysis/trace/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "analysis/trace/safetensors.h"
#include "kernels/base/bits.h"
#include "tests/support/scratch.h"

namespace sparsesync {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<Index>;

TraceHeader small_header() {
  return {{{"embedding", 100, 3, DType::f32}}, 2, 2, "a test", 7};
}

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Writes rows {3w, 3w+1, 50+s} for worker w at step s, without values.
void write_small(const fs::path& path, bool force = false) {
  TraceWriter writer(path, small_header(), force);
  for (int step = 0; step < 2; ++step) {
    for (int worker = 0; worker < 2; ++worker) {
      const std::vector<TracePart> parts{{{3 * worker, 3 * worker + 1, 50 + step}, {}}};
      writer.write(Rank{worker}, step, parts);
    }
  }
  writer.commit();
}

void write_file(const fs::path& path, const std::vector<SafetensorsEntry>& entries) {
  OutputFile file(path, true);
  write_safetensors(file, entries);
  file.commit();
}

/// Loads every file, one at a time.
void load_all(const Trace& trace) {
  for (int step = 0; step < trace.header().steps; ++step) {
    for (const Rank worker : Ranks(trace.header().workers)) trace.load_indices(worker, step);
  }
}

TEST(Trace, ReadsBackRowsWithoutValues) {
  const Scratch scratch;
  write_small(scratch / "T");
  const Trace trace = Trace::open(scratch / "T");
  EXPECT_EQ(trace.header(), small_header());
  EXPECT_FALSE(trace.has_values());
  load_all(trace);
  const auto parts = trace.load(Rank{1}, 1);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].indices, (Rows{3, 4, 51}));
  const std::vector<float> values = floats_of(parts[0].values);
  ASSERT_EQ(values.size(), 9U);
  for (const float value : values) {
    EXPECT_TRUE(value == 1 || value == 2 || value == 3 || value == 4) << value;
  }
  EXPECT_EQ(trace.load(Rank{1}, 1)[0].values, parts[0].values);
  EXPECT_TRUE(trace.load_indices(Rank{1}, 1)[0].values.empty());
  EXPECT_EQ(fs::exists(scratch / "T/w0001.s0001.safetensors"), true);
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"T"});
}

TEST(Trace, GeneratedValuesDependOnEveryParameterAndAreSpread) {
  TraceHeader header{{{"a", 1000, 100, DType::f32}, {"b", 1000, 100, DType::bf16}}, 2, 2, "", 7};
  const Rows rows{0, 5, 999};
  const auto values = made_values(header, Rank{0}, 0, 0, rows);
  std::vector<int> histogram(5);
  for (const float value : floats_of(values)) ++histogram.at(static_cast<std::size_t>(value));
  for (std::size_t number = 1; number <= 4; ++number) EXPECT_GT(histogram[number], 40);
  EXPECT_NE(made_values(header, Rank{1}, 0, 0, rows), values);
  EXPECT_NE(made_values(header, Rank{0}, 1, 0, rows), values);
  // The values of a row do not depend on the other touched rows.
  const Rows one{5};
  const auto alone = made_values(header, Rank{0}, 0, 0, one);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), values.begin() + 400));
  EXPECT_EQ(made_values(header, Rank{0}, 0, 1, rows).size(), 600U);
  // The documented formula for one element: worker 0, step 0, row 5, column 70.
  const std::uint64_t key = mix64(mix64(mix64(mix64(7) + 0) + 0) + 0);
  const std::uint64_t hash = mix64(mix64(key + 5) + 70 / 32);
  EXPECT_EQ(floats_of(alone)[70], static_cast<float>(1 + ((hash >> (2U * (70 % 32))) & 3U)));
  header.seed = 8;
  EXPECT_NE(made_values(header, Rank{0}, 0, 0, rows), values);
}

TEST(Trace, RecordedValuesKeepTheirBits) {
  const Scratch scratch;
  const std::vector<float> first{
      1.5F, -0.0F, 3, 4, 5, 6, 7, 8, std::numeric_limits<float>::infinity()};
  const TracePart part{{9, 2, 9}, bytes_of(first)};
  {
    TraceWriter writer(scratch / "T", small_header(), false);
    // Workers without touched rows come before and after this one. They have an empty list of
    // values.
    const std::vector<TracePart> nothing(1);
    writer.write(Rank{0}, 0, nothing);
    writer.write(Rank{1}, 0, std::span(&part, 1));
    writer.write(Rank{0}, 1, nothing);
    writer.write(Rank{1}, 1, std::span(&part, 1));
    writer.commit();
  }
  const Trace trace = Trace::open(scratch / "T");
  EXPECT_TRUE(trace.has_values());
  load_all(trace);
  EXPECT_TRUE(trace.load(Rank{0}, 0)[0].indices.empty());
  const auto loaded = trace.load(Rank{1}, 1);
  EXPECT_EQ(loaded[0].indices, part.indices);
  EXPECT_EQ(loaded[0].values, part.values);
}

TEST(Trace, SeveralTensorsAndDtypes) {
  const Scratch scratch;
  const TraceHeader header{{{"a", 10, 2, DType::bf16}, {"big", Index{1} << 33U, 1, DType::f32}},
                           1,
                           1,
                           "",
                           std::numeric_limits<std::uint64_t>::max()};
  TraceWriter writer(scratch / "T", header, false);
  const std::vector<TracePart> parts{
      {{1}, bytes_of(std::vector<std::uint16_t>{0x3F80, 0x4000})},
      {{(Index{1} << 33U) - 1, 0}, bytes_of(std::vector<float>{1, 2})}};
  writer.write(Rank{0}, 0, parts);
  writer.commit();
  const Trace trace = Trace::open(scratch / "T");
  EXPECT_EQ(trace.header(), header);
  const auto loaded = trace.load(Rank{0}, 0);
  EXPECT_EQ(loaded[0].values, parts[0].values);
  EXPECT_EQ(loaded[1].indices, parts[1].indices);
  const auto file = SafetensorsFile::open(scratch / "T" / trace_file_name(Rank{0}, 0));
  EXPECT_EQ(file.find("a.indices")->dtype, "I32");
  EXPECT_EQ(file.find("big.indices")->dtype, "I64");
}

TEST(Trace, UnsortedDuplicatesWithoutValuesBecomeDistinct) {
  const Scratch scratch;
  TraceHeader header = small_header();
  header.workers = header.steps = 1;
  TraceWriter writer(scratch / "T", header, false);
  const std::vector<TracePart> parts{{{9, 2, 9, 0}, {}}};
  writer.write(Rank{0}, 0, parts);
  writer.commit();
  const auto loaded = Trace::open(scratch / "T").load(Rank{0}, 0);
  EXPECT_EQ(loaded[0].indices, (Rows{0, 2, 9}));
  EXPECT_EQ(loaded[0].values.size(), 36U);
}

TEST(Trace, FileNamesHaveFourDigitsOrMore) {
  EXPECT_EQ(trace_file_name(Rank{3}, 1), "w0003.s0001.safetensors");
  EXPECT_EQ(trace_file_name(Rank{65'535}, 12'345), "w65535.s12345.safetensors");
  for (const std::string name : {"w0003.s0001.safetensors", "w65535.s12345.safetensors"}) {
    EXPECT_TRUE(is_trace_file_name(name)) << name;
  }
  for (const std::string name :
       {"", "w", "w0003", "w003.s0001.safetensors", "w0003.s1.safetensors",
        "w0003.s0001.safetensor", "w0003.s0001.safetensors2", "x0003.s0001.safetensors",
        "w00x3.s0001.safetensors", "a/w0003.s0001.safetensors"}) {
    EXPECT_FALSE(is_trace_file_name(name)) << name;
  }
}

TEST(TraceWriter, ReplacesOnlyWithForceAndOnlyTraces) {
  const Scratch scratch;
  write_small(scratch / "T");
  expect_error<InputError>([&] { write_small(scratch / "T"); }, {"exists", "--force"});
  write_small(scratch / "T", true);
  load_all(Trace::open(scratch / "T"));
  fs::create_directory(scratch / "home");
  write_all(scratch / "home/letter", "dear");
  expect_error<InputError>([&] { write_small(scratch / "home", true); }, {"no trace.json"});
  EXPECT_EQ(read_all(scratch / "home/letter"), "dear");
  write_all(scratch / "T/notes.txt", "mine");
  expect_error<InputError>([&] { write_small(scratch / "T", true); }, {"has 'notes.txt'"});
  EXPECT_EQ(read_all(scratch / "T/notes.txt"), "mine");
}

TEST(TraceWriter, ChecksItsArguments) {
  const Scratch scratch;
  {
    TraceWriter writer(scratch / "T", small_header(), false);
    const std::vector<TracePart> good{{{1}, {}}};
    writer.write(Rank{0}, 0, good);
    EXPECT_THROW(writer.write(Rank{0}, 0, good), ContractError);
    EXPECT_THROW(writer.write(Rank{2}, 0, good), ContractError);
    EXPECT_THROW(writer.write(Rank{0}, -1, good), ContractError);
    EXPECT_THROW(writer.write(Rank{1}, 0, {}), ContractError);
    const std::vector<TracePart> valued{{{1}, std::vector<std::byte>(12)}};
    EXPECT_THROW(writer.write(Rank{1}, 0, valued), ContractError);
    EXPECT_THROW(writer.commit(), ContractError);
  }
  {
    TraceWriter writer(scratch / "T", small_header(), false);
    const std::vector<TracePart> outside{{{1, 100}, {}}};
    expect_error<InputError>([&] { writer.write(Rank{0}, 0, outside); },
                             {"index 100", "position 1", "100 rows"});
    const std::vector<TracePart> mended{{{1, 99}, {}}};
    EXPECT_NO_THROW(writer.write(Rank{0}, 0, mended)) << "a failed write left a part";
  }
  EXPECT_TRUE(scratch.names().empty());
}

TEST(TraceWriter, RejectsInvalidHeaders) {
  const Scratch scratch;
  const auto refuse = [&](const std::function<void(TraceHeader&)>& change,
                          const std::string& part) {
    TraceHeader header = small_header();
    change(header);
    expect_error<InputError>([&] { TraceWriter(scratch / "T", header, false); }, {part});
  };
  refuse([](TraceHeader& h) { h.tensors.clear(); }, "one tensor or more");
  refuse([](TraceHeader& h) { h.tensors[0].name = ""; }, "must not be empty");
  refuse([](TraceHeader& h) { h.tensors[0].name = "../x"; }, "'/'");
  refuse([](TraceHeader& h) { h.tensors.push_back(h.tensors[0]); }, "twice");
  refuse(
      [](TraceHeader& h) {
        h.tensors.push_back({"embedding.values", 1, 1, DType::f32});
      },
      "the name of another tensor");
  refuse([](TraceHeader& h) { h.tensors[0].width = 0; }, "width of 0");
  refuse([](TraceHeader& h) { h.tensors[0].rows = 0; }, "0 rows");
  refuse([](TraceHeader& h) { h.tensors[0].rows = Index{1} << 61U; }, "can be counted");
  refuse([](TraceHeader& h) { h.workers = 0; }, "0 workers");
  refuse([](TraceHeader& h) { h.workers = 65'537; }, "65536");
  refuse([](TraceHeader& h) { h.steps = 0; }, "0 steps");
  refuse([](TraceHeader& h) { h.workers = 65'536, h.steps = 1'000'000; }, "files");
  EXPECT_TRUE(scratch.names().empty());
}

/// A valid trace that each test breaks.
class BrokenTrace : public testing::Test {
 protected:
  BrokenTrace() { write_small(root()); }

  fs::path root() const { return scratch_ / "T"; }
  fs::path file(int worker, int step) const { return root() / trace_file_name(Rank{worker}, step); }
  void replace_in_header(const std::string& from, const std::string& to) {
    std::string text = read_all(root() / "trace.json");
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from << " is not in " << text;
    write_all(root() / "trace.json", text.replace(at, from.size(), to));
  }
  void expect_open_refused(const std::vector<std::string>& parts) {
    expect_error<InputError>([&] { Trace::open(root()); }, parts);
  }
  /// Expects that opening succeeds and loading fails.
  void expect_load_refused(const std::vector<std::string>& parts) {
    const Trace trace = Trace::open(root());
    expect_error<InputError>([&] { load_all(trace); }, parts);
    expect_error<InputError>([&] { trace.load(Rank{1}, 1); }, parts);
  }
  void put_indices(const std::vector<std::int64_t>& indices) {
    write_file(file(1, 1), {{"embedding.indices",
                             "I64",
                             {static_cast<Index>(indices.size())},
                             std::as_bytes(std::span(indices))}});
  }
  Scratch scratch_;
};

TEST_F(BrokenTrace, IsNotATrace) {
  expect_error<InputError>([&] { Trace::open(scratch_ / "none"); }, {"none", "does not exist"});
  expect_error<InputError>([&] { Trace::open(root() / "trace.json"); }, {"not a folder"});
  fs::create_directory(scratch_ / "empty");
  expect_error<InputError>([&] { Trace::open(scratch_ / "empty"); }, {"no trace.json"});
}

TEST_F(BrokenTrace, HeaderIsNotJson) {
  write_all(root() / "trace.json", R"({"format": 1, "tens)");
  expect_open_refused({"trace.json", "not valid JSON"});
  write_all(root() / "trace.json", "[1]");
  expect_open_refused({"is a list of 1, not an object"});
  write_all(root() / "trace.json", "");
  expect_open_refused({"not valid JSON"});
}

TEST_F(BrokenTrace, FormatUnknown) {
  replace_in_header("\"format\": 1", "\"format\": 2");
  expect_open_refused({"format is 2"});
}
TEST_F(BrokenTrace, FormatNotANumber) {
  replace_in_header("\"format\": 1", R"("format": "1")");
  expect_open_refused({R"(format is "1")"});
}
TEST_F(BrokenTrace, WorkersNegative) {
  replace_in_header("\"workers\": 2", "\"workers\": -1");
  expect_open_refused({"trace.json", "workers is -1"});
}
TEST_F(BrokenTrace, WorkersZero) {
  replace_in_header("\"workers\": 2", "\"workers\": 0");
  expect_open_refused({"workers is 0"});
}
TEST_F(BrokenTrace, WorkersBeyondAnyNumber) {
  replace_in_header("\"workers\": 2", "\"workers\": 18446744073709551617");
  expect_open_refused({"workers is"});
}
TEST_F(BrokenTrace, StepsZero) {
  replace_in_header("\"steps\": 2", "\"steps\": 0");
  expect_open_refused({"steps is 0"});
}
TEST_F(BrokenTrace, StepsMissing) {
  replace_in_header("\"steps\": 2", "\"stepz\": 2");
  expect_open_refused({"steps is missing"});
}
TEST_F(BrokenTrace, WidthZero) {
  replace_in_header("\"width\": 3", "\"width\": 0");
  expect_open_refused({"tensors[0]", "width is 0"});
}
TEST_F(BrokenTrace, WidthOfAnotherType) {
  replace_in_header("\"width\": 3", "\"width\": 3.5");
  expect_open_refused({"width is 3.5"});
}
TEST_F(BrokenTrace, RowsNegative) {
  replace_in_header("\"rows\": 100", "\"rows\": -100");
  expect_open_refused({"rows is -100"});
}
TEST_F(BrokenTrace, RowsTimesWidthOverflow) {
  replace_in_header("\"rows\": 100", "\"rows\": 9223372036854775807");
  expect_open_refused({"can be counted"});
}
TEST_F(BrokenTrace, DtypeThatDoesNotExist) {
  replace_in_header("\"f32\"", "\"f31\"");
  expect_open_refused({"unknown dtype 'f31'", "f32, f64, f16, bf16, i32, i64"});
}
TEST_F(BrokenTrace, DtypeOfAnotherType) {
  replace_in_header("\"f32\"", "32");
  expect_open_refused({"dtype is 32, not a text"});
}
TEST_F(BrokenTrace, SeedNegative) {
  replace_in_header("\"seed\": 7", "\"seed\": -7");
  expect_open_refused({"seed is -7"});
}
TEST_F(BrokenTrace, NameWithASlash) {
  replace_in_header("\"embedding\"", "\"em/bedding\"");
  expect_open_refused({"'em/bedding'"});
}
TEST_F(BrokenTrace, NoTensors) {
  write_all(root() / "trace.json",
            R"({"format":1,"tensors":[],"workers":1,"steps":1,"source":"","seed":1})");
  expect_open_refused({"one tensor or more"});
}
TEST_F(BrokenTrace, TensorsOfAnotherType) {
  write_all(root() / "trace.json",
            R"({"format":1,"tensors":{},"workers":1,"steps":1,"source":"","seed":1})");
  expect_open_refused({"tensors is an object, not a list"});
  write_all(root() / "trace.json",
            R"({"format":1,"tensors":[4],"workers":1,"steps":1,"source":"","seed":1})");
  expect_open_refused({"tensors[0] is 4, not an object"});
}

TEST_F(BrokenTrace, StepMissing) {
  fs::remove(file(1, 1));
  expect_open_refused({"w0001.s0001.safetensors", "worker 1 at step 1"});
}
TEST_F(BrokenTrace, FileTruncated) {
  const std::string bytes = read_all(file(1, 1));
  for (const std::size_t size :
       {bytes.size() - 1, bytes.size() / 2, std::size_t{9}, std::size_t{0}}) {
    write_all(file(1, 1), bytes.substr(0, size));
    expect_load_refused({"w0001.s0001.safetensors"});
  }
}
TEST_F(BrokenTrace, FirstFileTruncated) {
  write_all(file(0, 0), "");
  expect_open_refused({"w0000.s0000.safetensors"});
}
TEST_F(BrokenTrace, FileHasAWrongSize) {
  std::string bytes = read_all(file(1, 1));
  const std::size_t at = bytes.find("\"shape\":[3]");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 11, "\"shape\":[4]");
  write_all(file(1, 1), bytes);
  expect_load_refused({"embedding.indices", "shape does not match the tensor's"});
}
TEST_F(BrokenTrace, IndexOutside) {
  put_indices({1, 99, 100});
  expect_load_refused({"w0001.s0001", "embedding.indices", "index 100 at position 2", "100 rows"});
}
TEST_F(BrokenTrace, IndexNegative) {
  put_indices({1, -5});
  expect_load_refused({"embedding.indices", "index -5 at position 1"});
}
TEST_F(BrokenTrace, IndexNegativeInI32) {
  const std::vector<std::int32_t> indices{-1};
  write_file(file(1, 1), {{"embedding.indices", "I32", {1}, std::as_bytes(std::span(indices))}});
  expect_load_refused({"index -1 at position 0"});
}
TEST_F(BrokenTrace, IndicesOfFloats) {
  const std::vector<float> indices{1};
  write_file(file(1, 1), {{"embedding.indices", "F32", {1}, std::as_bytes(std::span(indices))}});
  expect_load_refused({"dtype F32, not I64 or I32"});
}
TEST_F(BrokenTrace, IndicesOfTwoDimensions) {
  const std::vector<std::int64_t> indices{1, 2};
  write_file(file(1, 1), {{"embedding.indices", "I64", {1, 2}, std::as_bytes(std::span(indices))}});
  expect_load_refused({"2 dimensions"});
}
TEST_F(BrokenTrace, TensorMissing) {
  const std::vector<std::int64_t> indices{1};
  write_file(file(1, 1), {{"other.indices", "I64", {1}, std::as_bytes(std::span(indices))}});
  expect_load_refused({"'embedding.indices' is missing"});
}
TEST_F(BrokenTrace, TensorUnknown) {
  const std::vector<std::int64_t> indices{1};
  write_file(file(1, 1), {{"embedding.indices", "I64", {1}, std::as_bytes(std::span(indices))},
                          {"more.indices", "I64", {1}, std::as_bytes(std::span(indices))}});
  expect_load_refused({"'more.indices' belongs to no tensor"});
}
TEST_F(BrokenTrace, ValuesInSomeFilesOnly) {
  const std::vector<std::int64_t> indices{1};
  const std::vector<float> values{1, 2, 3};
  write_file(file(1, 1), {{"embedding.indices", "I64", {1}, std::as_bytes(std::span(indices))},
                          {"embedding.values", "F32", {1, 3}, std::as_bytes(std::span(values))}});
  expect_load_refused({"'embedding.values' is present"});
}

TEST_F(BrokenTrace, ValuesThatDoNotFit) {
  const std::vector<std::int64_t> indices{1};
  const std::vector<float> values{1, 2, 3};
  const SafetensorsEntry good{"embedding.indices", "I64", {1}, std::as_bytes(std::span(indices))};
  const auto floats = std::as_bytes(std::span(values));
  for (int worker = 0; worker < 2; ++worker) {
    for (int step = 0; step < 2; ++step) {
      write_file(file(worker, step), {good, {"embedding.values", "F32", {1, 3}, floats}});
    }
  }
  load_all(Trace::open(root()));
  write_file(file(1, 1), {good, {"embedding.values", "F32", {3, 1}, floats}});
  expect_load_refused({"embedding.values", "[1, 3]"});
  write_file(file(1, 1), {good, {"embedding.values", "BF16", {1, 3}, floats.first(6)}});
  expect_load_refused({"dtype BF16", "f32"});
  write_file(file(1, 1), {good, {"embedding.values", "F32", {0, 3}, {}}});
  expect_load_refused({"[1, 3]"});
  write_file(file(1, 1), {good});
  expect_load_refused({"'embedding.values' is missing"});
}

}  // namespace
}  // namespace sparsesync
