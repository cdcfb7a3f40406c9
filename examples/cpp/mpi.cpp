// Synchronizes two tensors as one bucket, in the background. Each worker is a process.
//   mpirun -np 4 mpi
#include <sparsesync/memory.h>
#include <sparsesync/session.h>
#include <sparsesync/transports/mpi.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

using namespace sparsesync;

namespace {

/// Holds one worker's gradient of an embedding: the rows that its batch touched, and their values.
struct EmbeddingGradient {
  std::vector<Index> rows;
  std::vector<float> values;  // [rows.size(), width]

  Gradient view() const {
    return Gradient::row_sparse(rows, std::as_bytes(std::span(values)).data());
  }
};

void train() {
  MpiWorld world;
  HostMemory memory(std::int64_t{1} << 30);  // 1 GiB; all workers reject a step that needs more
  Session session(world.join(), memory);
  // Tensors of a bucket share their messages. All workers register the same bucket.
  BucketSpec spec;
  spec.name = "embeddings";
  spec.tensors = {{"words", 50'000, 2, DType::f32}, {"users", 1'000'000, 1, DType::f32}};
  spec.scheme = "balanced";
  spec.reduction = Reduction::mean;
  const BucketId bucket = session.register_bucket(spec);

  const int rank = session.rank().value;
  for (int step = 0; step < 3; ++step) {
    const EmbeddingGradient words{{7, 100 + rank}, {1, 2, 3, 4}};
    const EmbeddingGradient users{{rank}, {static_cast<float>(step)}};
    const std::array gradients{words.view(), users.view()};
    session.submit(bucket, Phase::reduce, gradients);
    const Session::Ticket gathered = session.submit(bucket, Phase::gather);
    // The rest of the backward pass runs here, while the bucket is synchronized.
    session.wait(gathered);
    const TensorResult mean = session.result(bucket, 0);
    const auto* const values = reinterpret_cast<const float*>(mean.values.data);
    if (rank == 0) {
      std::printf("step %d: %zu words; the mean of row 7 is %g %g\n", step, mean.indices.size(),
                  values[0], values[1]);
    }
  }
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {  // the message says what failed, where, and how to fix it
    std::fprintf(stderr, "mpi: %s\n", error.what());
    return 1;
  }
}
