// Stubs of the transport `ucx` for a build without UCX's headers.
#include "sparsesync/errors.h"
#include "sparsesync/transports/ucx.h"

namespace sparsesync {
namespace {

constexpr const char* kMissing = "this build has no UCX: configure it with -DSPARSESYNC_UCX=ON";

}  // namespace

std::unique_ptr<Transport> ucx_over(Rendezvous&, const UcxOptions&) {
  throw Error(kMissing);
}

std::unique_ptr<Transport> ucx_over(std::unique_ptr<Transport>, const UcxOptions&) {
  throw Error(kMissing);
}

std::unique_ptr<Transport> join(const std::string&, Rank, int, const UcxOptions&) {
  throw Error(kMissing);
}

std::string why_no_ucx() {
  return kMissing;
}

std::string ucx_text() {
  return std::string("(") + kMissing + ")";
}

}  // namespace sparsesync
