// Stubs of the transport `mpi` for a build without MPI.
#include "sparsesync/errors.h"
#include "sparsesync/transports/mpi.h"

namespace sparsesync {
namespace {

constexpr const char* kMissing = "this build has no MPI: configure it with -DSPARSESYNC_MPI=ON";

}  // namespace

bool has_mpi() {
  return false;
}

std::string why_no_mpi() {
  return kMissing;
}

std::string mpi_text() {
  return std::string("(") + kMissing + ")";
}

class MpiWorld::State {};

MpiWorld::MpiWorld(MpiOptions) {
  throw UnsupportedError(kMissing);
}
MpiWorld::~MpiWorld() = default;

Rank MpiWorld::rank() const {
  return Rank{0};
}
int MpiWorld::size() const {
  return 1;
}
std::unique_ptr<Transport> MpiWorld::join(int, Chunks, std::optional<std::chrono::milliseconds>) {
  return nullptr;
}

}  // namespace sparsesync
