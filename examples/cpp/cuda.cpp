// Sums gradients in GPU memory. Two workers, threads of this program, share GPU 0.
//   cuda
#include <sparsesync/device.h>
#include <sparsesync/memory.h>
#include <sparsesync/session.h>
#include <sparsesync/transports/local.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

using namespace sparsesync;

namespace {

constexpr Index kRows = 1000;

void work(std::unique_ptr<Transport> transport) {
  HostMemory host;
  DeviceMemory memory(0);  // a pool of GPU 0
  PinnedMemory pinned;     // host memory that the GPU reads and writes
  const auto stream = make_device_stream(memory, pinned);
  SessionOptions options;
  options.device = OnDevice{stream.get(), &memory, &pinned};
  Session session(std::move(transport), host, options);
  const BucketId bucket = session.register_bucket({"bucket", {{"rows", kRows, 1, DType::f32}}});

  // Gradients may be in any memory that the GPU reaches. A training program passes the tensors of
  // its framework.
  const Context context(pinned, *stream);
  auto* const indices = static_cast<Index*>(pinned.allocate(2 * sizeof(Index), 64, {}));
  auto* const values = static_cast<float*>(pinned.allocate(2 * sizeof(float), 64, {}));
  for (int i = 0; i < 2; ++i) indices[i] = i == 0 ? 7 : 100 + session.rank().value;
  for (int i = 0; i < 2; ++i) values[i] = 1;
  const auto* const bytes = reinterpret_cast<const std::byte*>(values);
  session.synchronize(bucket, std::array{Gradient::row_sparse({indices, 2}, bytes)});

  // The result is in GPU memory. to_dense() writes it to any memory that the GPU reaches.
  const std::size_t dense_bytes = kRows * sizeof(float);
  auto* const dense = static_cast<std::byte*>(pinned.allocate(dense_bytes, 64, {}));
  to_dense(context, session.result(bucket, 0), {dense, DType::f32, kRows, 1});
  synchronize(context);
  std::printf("worker %d: row 7 is %g\n", session.rank().value,
              reinterpret_cast<const float*>(dense)[7]);
  pinned.deallocate(dense, dense_bytes, 64, {});
  pinned.deallocate(values, 2 * sizeof(float), 64, {});
  pinned.deallocate(indices, 2 * sizeof(Index), 64, {});
}

}  // namespace

int main() {
  const DeviceFacts facts = device_facts();
  if (facts.devices == 0) {
    std::printf("SKIPPED: %s\n", facts.problem.c_str());
    return 77;
  }
  LocalNetwork network(2);
  std::jthread other(work, network.join(Rank{1}));
  work(network.join(Rank{0}));
}
