// The part of NCCL that the transport uses, among threads of one process on the emulated device.
#pragma once

#include "engine/transport/nccl_library.h"

namespace sparsesync::nccl {

Library emulated_nccl();

}  // namespace sparsesync::nccl
