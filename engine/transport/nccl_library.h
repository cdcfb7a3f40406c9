// NCCL, opened at run time: a program that never uses it runs without, and takes the machine's own.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <string>

namespace sparsesync::nccl {

// What NCCL 2 promises to keep of its interface, as far as it is used here.

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

/// Names a communicator: one worker makes it and tells all.
struct UniqueId {
  char bytes[128];
};

/// A communicator.
using Comm = struct OpaqueComm*;

/// The first fields of ncclConfig_t, of which later versions have more: `size` says how many.
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
  int not_given = INT_MIN;  // a later version's field, within the same size
};

/// The functions, by the names that NCCL gives them.
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

/// Opens it once.
/// @throws DeviceError if there is none, or one without a function that is needed
const Library& library();

/// As people write versions: "2.28.9".
std::string version_text(int version);

}  // namespace sparsesync::nccl
