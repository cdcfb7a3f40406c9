#include "kernels/index_code.h"

namespace sparsesync {

std::string_view name_of(IndexCode code) {
  return for_index_code(code, [](auto type) -> std::string_view { return decltype(type)::name; });
}

}  // namespace sparsesync
