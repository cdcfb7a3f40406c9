// Access of the laboratory to the scheme of a bucket, beyond the public interface.
#pragma once

#include "schemes/scheme.h"
#include "sparsesync/session.h"

namespace sparsesync {

/// Returns the scheme at work for a bucket, for its costs and its exact traffic. While no phase of
/// the bucket runs.
const Scheme& scheme_of(const Session& session, BucketId bucket);

}  // namespace sparsesync
