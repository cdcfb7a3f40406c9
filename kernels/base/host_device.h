// Marks arithmetic that the CPU and the GPU share: one text, the same bits on both.
#pragma once

#if defined(__CUDACC__)
#define SPARSESYNC_HOST_DEVICE __host__ __device__
#else
#define SPARSESYNC_HOST_DEVICE
#endif
