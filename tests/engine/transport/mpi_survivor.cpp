// A worker under mpirun that exchanges messages until an error occurs, for tests that cause errors.
// It writes DIR/RANK.pid when it has started. At the end it writes DIR/RANK.status: the type of the
// error, the seconds since the last successful step, and the error message.
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <string>

#include "sparsesync/transports/mpi.h"
#include "tests/support/gradients.h"
#include "tests/support/workers.h"

namespace sparsesync::testing {
namespace {

const char* type_of(const std::exception_ptr& error) {
  if (is<PeerLostError>(error)) return "PeerLostError";
  if (is<DeadlineError>(error)) return "DeadlineError";
  if (is<AbortedError>(error)) return "AbortedError";
  return "another error";
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path.string() + ".new") << text << '\n';
  std::filesystem::rename(path.string() + ".new", path);
}

int survive(const std::filesystem::path& folder, std::chrono::milliseconds deadline) {
  MpiWorld world({false, deadline});
  const std::filesystem::path mine = folder / std::to_string(world.rank().value);
  Clock::time_point last_step = Clock::now();
  try {
    HostMemory memory;
    Session session(world.join(), memory, {deadline, 1});
    const TensorSpec tensor{"t", 100'000, 64, DType::f32};
    const BucketId bucket = session.register_bucket({"b", {tensor}, "balanced"});
    Random random(1 + static_cast<std::uint64_t>(world.rank().value));
    const OwnedGradient own =
        random_gradient(random, tensor, distinct_rows(random, tensor.rows, 20'000));
    const std::vector<Gradient> gradients{own.view()};
    for (int step = 0; true; ++step) {
      session.wait(session.submit(bucket, Phase::reduce, gradients));
      session.wait(session.submit(bucket, Phase::gather));
      last_step = Clock::now();
      if (step == 2) write(mine.string() + ".pid", std::to_string(getpid()));
    }
  } catch (const std::exception& error) {
    const double seconds = std::chrono::duration<double>(Clock::now() - last_step).count();
    std::ostringstream text;
    text << type_of(std::current_exception()) << ' ' << std::fixed << std::setprecision(3)
         << seconds << ' ' << error.what();
    write(mine.string() + ".status", text.str());
  }
  return 1;
}

}  // namespace
}  // namespace sparsesync::testing

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return sparsesync::testing::survive(argv[1], std::chrono::milliseconds(std::stoi(argv[2])));
}
