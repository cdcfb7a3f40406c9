// Operations: called alike for every device.
#pragma once

#include <type_traits>
#include <utility>

#include "sparsesync/context.h"  // IWYU pragma: export

namespace sparsesync {

namespace detail {
/// After an operation on a GPU: waits for it if the stream is a checked one.
void synchronize_if_checked(const Context& context);
}  // namespace detail

/// An operation: runs the implementation of the context's device, with the same parameters. No
/// other code distinguishes devices. Each header declares the CPU implementations and,
/// under them, the operations by SPARSESYNC_OPERATION.
///
/// On a GPU an operation does not wait, unless its comment says that it synchronizes the stream:
/// what it would throw of values that it looks at, the next synchronization throws in its place
/// (DeviceStream). What follows until then works on, inside its memory, and its results are lost.
template <typename Implementation>
class Operation;

template <typename Result, typename... Arguments>
class Operation<Result(const Context&, Arguments...)> {
 public:
  using Implementation = Result(const Context&, Arguments...);
  /// @param cuda  null where the library is built without
  constexpr Operation(Implementation& cpu, Implementation* cuda) : cpu_(&cpu), cuda_(cuda) {}

  Result operator()(const Context& context, Arguments... arguments) const {
    if (context.device() == Device::cpu) {
      return cpu_(context, std::forward<Arguments>(arguments)...);
    }
    if constexpr (std::is_void_v<Result>) {
      cuda_(context, std::forward<Arguments>(arguments)...);
      detail::synchronize_if_checked(context);
    } else {
      return cuda_(context, std::forward<Arguments>(arguments)...);
    }
  }

 private:
  Implementation* cpu_;
  Implementation* cuda_;
};

template <typename Result, typename... Arguments>
Operation(Result (&)(const Context&, Arguments...), Result (*)(const Context&, Arguments...))
    -> Operation<Result(const Context&, Arguments...)>;

#if defined(SPARSESYNC_WITH_CUDA)
#define SPARSESYNC_CUDA_IMPLEMENTATION(name) &cuda::name
#else
#define SPARSESYNC_CUDA_IMPLEMENTATION(name) static_cast<decltype(&cpu::name)>(nullptr)
#endif

/// Makes an operation of the implementations cpu::name and cuda::name, and declares the latter.
// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared takes none
#define SPARSESYNC_OPERATION(name)                  \
  namespace cuda {                                  \
  decltype(cpu::name) name;                         \
  }                                                 \
  inline constexpr Operation name {                 \
    cpu::name, SPARSESYNC_CUDA_IMPLEMENTATION(name) \
  }
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sparsesync
