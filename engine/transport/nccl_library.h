// NCCL, loaded at run time, so that a program without NCCL transports does not need it. The
// machine's NCCL is used.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <string>

namespace sparsesync::nccl {

// The parts of NCCL 2's stable interface that the transport uses.

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kSystemError = 2;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

using DataType = int;
inline constexpr DataType kInt8 = 0;
inline constexpr DataType kInt32 = 2;
inline constexpr DataType kInt64 = 4;
inline constexpr DataType kFloat32 = 7;
inline constexpr DataType kFloat64 = 8;

inline constexpr int kSum = 0;

/// Identifies a communicator. One worker creates it and sends it to the others.
struct UniqueId {
  char bytes[128];
};

/// A communicator.
using Comm = struct OpaqueComm*;

/// The first fields of ncclConfig_t. Later versions have more fields, so `size` says how many bytes
/// are set.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int not_given = INT_MIN;  // a later version's field that lies within this size
};

/// NCCL's functions.
struct Library {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_count)(Comm comm, int* count);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* from, std::size_t count, DataType type, int peer, Comm comm,
                 cudaStream_t stream);
  Result (*recv)(void* to, std::size_t count, DataType type, int peer, Comm comm,
                 cudaStream_t stream);
  Result (*all_reduce)(const void* from, void* to, std::size_t count, DataType type, int operation,
                       Comm comm, cudaStream_t stream);
};

/// Returns NCCL's functions. The first call loads the library.
/// @throws DeviceError if NCCL is missing or lacks a function
const Library& library();

/// Formats an NCCL version number: 22809 is "2.28.9".
std::string version_text(int version);

}  // namespace sparsesync::nccl
