// Several encodes or decodes in one launch: of the messages of a phase each is small.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/index_code.h"

namespace sparsesync::cuda {

/// What encode() is given.
struct EncodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const Index> indices;
  std::span<std::byte> out;
};

/// What decode() is given.
struct DecodeJob {
  IndexCode code{};
  IndexRange range;
  std::span<const std::byte> bytes;
  std::span<Index> indices;
};

/// encode() of each job: one launch for kJobs of them. Does not synchronize the stream.
/// @param jobs  no output overlaps what another one reads or writes
/// @throws ContractError as encode(), before anything is written
void encode_all(const Context& context, std::span<const EncodeJob> jobs);

/// decode() of each job: one launch for kJobs of them. Does not synchronize the stream.
/// @param jobs  no output overlaps what another one reads or writes
/// @throws CorruptDataError as decode() where a size is wrong, before anything is written
void decode_all(const Context& context, std::span<const DecodeJob> jobs);

/// How many go into one launch: a kernel's parameters hold their descriptions.
inline constexpr int kJobs = 16;

}  // namespace sparsesync::cuda
