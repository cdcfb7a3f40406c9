#include "kernels/dtype.h"

#include <fmt/format.h>

namespace sparsesync {

std::string_view name_of(DType dtype) {
  return dtype == DType::f32 ? "f32" : "bf16";
}

DType dtype_named(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw InputError(fmt::format("unknown dtype '{}': use f32 or bf16", name));
}

}  // namespace sparsesync
