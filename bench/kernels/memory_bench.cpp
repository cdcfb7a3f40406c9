// The yardsticks themselves, with one and with two threads.
#include "bench/kernels/memory.h"

namespace sparsesync::bench {
namespace {

BENCHMARK(copy)->ArgNames({"threads"})->Arg(1);
BENCHMARK(copy)->ArgNames({"threads"})->Arg(2)->UseRealTime();
BENCHMARK(triad)->ArgNames({"threads"})->Arg(1);
BENCHMARK(triad)->ArgNames({"threads"})->Arg(2)->UseRealTime();

}  // namespace
}  // namespace sparsesync::bench
