// Measures the baselines themselves: on the CPU with one and with two threads.
#include "bench/kernels/memory.h"

namespace sparsesync::bench {
namespace {

const bool kBaselines = add_baselines();
const bool kCopies = of_cpu_alone([] {
  benchmark::RegisterBenchmark("copy", copy)->ArgName("threads")->Arg(1);
  benchmark::RegisterBenchmark("copy", copy)->ArgName("threads")->Arg(2)->UseRealTime();
});

}  // namespace
}  // namespace sparsesync::bench
