// Fuzz targets: all parsers of bytes from other processes and from files.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace sparsesync::fuzz {

using Bytes = std::vector<std::byte>;

/// A parser of untrusted bytes.
struct Target {
  std::string_view name;
  /// Parses the input. It catches the errors that the interface documents; any other exception is a
  /// finding.
  void (*run)(std::span<const std::byte> input);
  /// Returns initial inputs: valid ones and large ones.
  std::vector<Bytes> (*seeds)();
};

/// Returns all targets.
std::span<const Target> targets();

/// @throws InputError if no target has this name; the message lists all names
const Target& target_named(std::string_view name);

// ---- Defined in decoders.cpp.
void read_index_codes(std::span<const std::byte> bytes);
std::vector<Bytes> index_codes();
void read_message(std::span<const std::byte> bytes);
std::vector<Bytes> messages();

// ---- Defined in files.cpp.
void read_safetensors_file(std::span<const std::byte> input);
std::vector<Bytes> safetensors_files();
void read_npy_file(std::span<const std::byte> input);
std::vector<Bytes> npy_files();
void read_trace_header(std::span<const std::byte> input);
std::vector<Bytes> trace_headers();
void read_network_file(std::span<const std::byte> input);
std::vector<Bytes> network_files();
void read_model_file(std::span<const std::byte> input);
std::vector<Bytes> model_files();

// ---- Defined in sessions.cpp.
void take_steps_with_a_liar(std::span<const std::byte> input);
/// Does the same as take_steps_with_a_liar().
/// @return whether no worker ended with an error
bool ends_well_with_a_liar(std::span<const std::byte> bytes);
std::vector<Bytes> lies();

}  // namespace sparsesync::fuzz
