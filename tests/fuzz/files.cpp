// Fuzz targets for untrusted files. Each input becomes a file in memory with a separate name.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "analysis/simulate/training_simulator.h"
#include "analysis/trace/inputs.h"
#include "analysis/trace/safetensors.h"
#include "analysis/trace/trace.h"
#include "kernels/base/error.h"
#include "sparsesync/network_file.h"
#include "tests/fuzz/targets.h"

namespace sparsesync::fuzz {
namespace {

/// A file in memory with these bytes. It exists during the lifetime of the object.
class FileInMemory {
 public:
  explicit FileInMemory(std::span<const std::byte> bytes)
      : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0) throw std::system_error(errno, std::generic_category(), "memfd");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  ~FileInMemory() { ::close(descriptor_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

template <typename Read>
void read(std::span<const std::byte> input, const Read& read_file) {
  const FileInMemory file(input);
  try {
    read_file(file.path());
  } catch (const InputError&) {
  }
}

Bytes bytes_of(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

/// Returns JSON texts that are hard to parse: deep nesting, many names, and long strings.
std::vector<Bytes> hard_json() {
  std::string names = "{";
  for (int i = 0; i < 2000; ++i) names += "\"name " + std::to_string(i) + "\":1,";
  names += "\"\":0}";
  return {bytes_of(std::string(100'000, '[')), bytes_of(names),
          bytes_of("{\"" + std::string(20'000, 'x') + R"(":"\u202e\ud800"})"),
          bytes_of("[1e400,-0,0.1,18446744073709551616]")};
}

std::vector<Bytes> with_hard_json(std::vector<Bytes> seeds) {
  for (Bytes& each : hard_json()) seeds.push_back(std::move(each));
  return seeds;
}

Bytes safetensors_of(const std::string& header, std::size_t data) {
  const std::uint64_t size = header.size();
  Bytes bytes(sizeof(size));
  std::memcpy(bytes.data(), &size, sizeof(size));
  const Bytes text = bytes_of(header);
  bytes.insert(bytes.end(), text.begin(), text.end());
  bytes.resize(bytes.size() + data);
  return bytes;
}

}  // namespace

void read_safetensors_file(std::span<const std::byte> input) {
  read(input, [](const std::filesystem::path& path) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::size_t sum = 0;
    for (const SafetensorsEntry& entry : file.tensors()) {
      if (file.find(entry.name) != &entry) throw std::logic_error("a tensor that is not found");
      for (const std::byte byte : entry.bytes) sum += static_cast<std::size_t>(byte);
      const Index element = safetensors_element_bytes(entry.dtype);
      if (element > 0 && entry.elements() * element != std::ssize(entry.bytes)) {
        throw std::logic_error("a tensor of another size");
      }
    }
    static_cast<void>(sum);
  });
}

std::vector<Bytes> safetensors_files() {
  std::vector<Bytes> seeds{
      safetensors_of("{}", 0),
      safetensors_of(R"({"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      safetensors_of(R"({"__metadata__":{"a":"b"},"i":{"dtype":"I64","shape":[1],)"
                     R"("data_offsets":[0,8]},"v":{"dtype":"BF16","shape":[0],)"
                     R"("data_offsets":[8,8]}})",
                     8)};
  for (const Bytes& each : hard_json()) {
    seeds.push_back(
        safetensors_of(std::string(reinterpret_cast<const char*>(each.data()), each.size()), 0));
  }
  return seeds;
}

void read_npy_file(std::span<const std::byte> input) {
  read(input, [](const std::filesystem::path& path) {
    const NpyArray array = read_npy(path);
    Index elements = 1;
    for (const Index each : array.shape) elements *= each;
    if (elements != std::ssize(array.values)) throw std::logic_error("an array of another size");
  });
}

std::vector<Bytes> npy_files() {
  const auto file = [](const std::string& header, std::size_t data) {
    std::string text("\x93NUMPY\x01\x00", 8);
    text += static_cast<char>(header.size() % 256);
    text += static_cast<char>(header.size() / 256);
    Bytes bytes = bytes_of(text + header);
    bytes.resize(bytes.size() + data, std::byte{1});
    return bytes;
  };
  return {file("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n", 24),
          file("{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }\n", 12),
          file("{'descr': '|i1', 'fortran_order': False, 'shape': (0, 5), }\n", 0)};
}

void read_trace_header(std::span<const std::byte> input) {
  // The folder has no other files, so even a valid header is rejected because files are missing.
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("sparsesync-fuzz-" + std::to_string(::getpid()) + "-trace");
  std::filesystem::create_directories(folder);
  const FileInMemory file(input);
  const std::filesystem::path header = folder / "trace.json";
  std::filesystem::remove(header);
  std::filesystem::create_symlink(file.path(), header);
  try {
    static_cast<void>(Trace::open(folder));
  } catch (const InputError&) {
  }
  std::filesystem::remove_all(folder);
}

std::vector<Bytes> trace_headers() {
  return with_hard_json(
      {bytes_of(R"({"format":1,"workers":2,"steps":1,"seed":7,"source":"made","tensors":)"
                R"([{"name":"t","rows":100,"width":4,"dtype":"f32"}]})")});
}

void read_network_file(std::span<const std::byte> input) {
  read(input, [](const std::filesystem::path& path) {
    const NetworkFile file = read_network(path);
    static_cast<void>(file.network(true));
    static_cast<void>(file.network(false));
  });
}

std::vector<Bytes> network_files() {
  NetworkFile file;
  file.inter = FittedLink{};
  file.inter->latency_s = 1e-5;
  file.inter->rate_bps = 1e10;
  return with_hard_json({bytes_of(network_json(file, {{"commit", "none"}}))});
}

void read_model_file(std::span<const std::byte> input) {
  read(input, [](const std::filesystem::path& path) { static_cast<void>(read_model(path)); });
}

std::vector<Bytes> model_files() {
  ModelLayer dense{"a", 0.001, 0.002, 1000};
  ModelLayer sparse{"b", 0.001, 0.002};
  sparse.sparse = SparseGradient{1000, 8, 20, {{2, 1.9}, {8, 6}}};
  return with_hard_json({bytes_of(model_json({"m", {dense, sparse}}, {{"commit", "none"}}))});
}

}  // namespace sparsesync::fuzz
