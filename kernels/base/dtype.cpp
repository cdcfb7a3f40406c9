#include "kernels/base/dtype.h"

#include <fmt/format.h>

namespace sparsesync {

std::string_view name_of(DType dtype) {
  return for_dtype(dtype, []<typename T>(T) { return ValueTraits<T>::name; });
}

std::string dtype_names(std::string_view separator) {
  std::string names;
  for (const DType dtype : kDTypes) {
    if (!names.empty()) names += separator;
    names += name_of(dtype);
  }
  return names;
}

DType dtype_named(std::string_view name) {
  for (const DType dtype : kDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  throw InputError(fmt::format("unknown dtype '{}': use one of {}", name, dtype_names(", ")));
}

}  // namespace sparsesync
