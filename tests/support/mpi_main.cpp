// The main() of test programs under mpirun. Rank 0 prints everything, and the others print only
// failures.
#include "tests/support/mpi_workers.h"

namespace {

/// Prints only failures.
class Failures : public ::testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "worker %d: %s: %s:%d: %s\n", rank_, test ? test->name() : "",
                 result.file_name(), result.line_number(), result.message());
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  using sparsesync::testing::MpiProcesses;
  ::testing::InitGoogleTest(&argc, argv);
  const int rank = MpiProcesses::get().rank();
  if (rank != 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures(rank));
  }
  const int status = RUN_ALL_TESTS();
  MpiProcesses::instance().reset();
  return status;
}
