// Stubs of the transport `mpi` for a build without MPI.
#include "kernels/base/error.h"
#include "sparsesync/transports/mpi.h"

namespace sparsesync {

bool has_mpi() {
  return false;
}

class MpiWorld::State {};

MpiWorld::MpiWorld(MpiOptions) {
  throw Error("this build has no MPI: configure it with -DSPARSESYNC_MPI=ON");
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
