// The part of CUDA's driver API that the library uses. cudaGetDriverEntryPointByVersion() finds the
// functions by name.
#pragma once

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400
};
using CUdevice = int;
using CUcontext = struct EmulatedContext*;
using CUmodule = struct EmulatedModule*;
using CUfunction = struct EmulatedFunction*;
