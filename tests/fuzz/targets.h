// The targets of fuzzing: all readers of bytes from other processes and from files.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace sparsesync::fuzz {

using Bytes = std::vector<std::byte>;

/// A reader of bytes that are not trusted.
struct Target {
  std::string_view name;
  /// Reads the input. Errors that its interface names are caught; what else it throws is a finding.
  void (*run)(std::span<const std::byte> input);
  /// Inputs to begin with: good ones, and large ones.
  std::vector<Bytes> (*seeds)();
};

/// All of them.
std::span<const Target> targets();

/// @throws InputError if there is none of that name; the text lists those that exist
const Target& target_named(std::string_view name);

// ---- In decoders.cpp.
void read_index_codes(std::span<const std::byte> bytes);
std::vector<Bytes> index_codes();
void read_message(std::span<const std::byte> bytes);
std::vector<Bytes> messages();

// ---- In files.cpp.
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

// ---- In sessions.cpp.
void take_steps_with_a_liar(std::span<const std::byte> input);
/// The same. @return whether no worker ended with an error
bool ends_well_with_a_liar(std::span<const std::byte> bytes);
std::vector<Bytes> lies();

}  // namespace sparsesync::fuzz
