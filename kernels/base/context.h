// Operations: called alike for every device.
#pragma once

#include <type_traits>
#include <utility>

#include "sparsesync/context.h"  // IWYU pragma: export

namespace sparsesync {

namespace detail {
/// After an operation on a GPU: waits for it if the queue is a checked one.
void settle(const Context& context);
}  // namespace detail

/// An operation of this floor: called as its bodies are, it runs the one of the context's device.
/// The only place where a device is told apart. Each header declares the CPU bodies and, under
/// them, the operations by SPARSESYNC_OPERATION.
///
/// On a GPU an operation does not wait, unless its comment says that it synchronizes the stream:
/// what it would throw of values that it looks at, the next synchronization throws in its place
/// (DeviceQueue). What follows until then works on, inside its memory, and its results are lost.
template <typename Body>
class Operation;

template <typename Result, typename... Arguments>
class Operation<Result(const Context&, Arguments...)> {
 public:
  using Body = Result(const Context&, Arguments...);
  /// @param cuda  null where the library is built without
  constexpr Operation(Body& cpu, Body* cuda) : cpu_(&cpu), cuda_(cuda) {}

  Result operator()(const Context& context, Arguments... arguments) const {
    if (context.device() == Device::cpu) {
      return cpu_(context, std::forward<Arguments>(arguments)...);
    }
    if constexpr (std::is_void_v<Result>) {
      cuda_(context, std::forward<Arguments>(arguments)...);
      detail::settle(context);
    } else {
      return cuda_(context, std::forward<Arguments>(arguments)...);
    }
  }

 private:
  Body* cpu_;
  Body* cuda_;
};

template <typename Result, typename... Arguments>
Operation(Result (&)(const Context&, Arguments...), Result (*)(const Context&, Arguments...))
    -> Operation<Result(const Context&, Arguments...)>;

#if defined(SPARSESYNC_WITH_CUDA)
#define SPARSESYNC_CUDA_BODY(name) &cuda::name
#else
#define SPARSESYNC_CUDA_BODY(name) static_cast<decltype(&cpu::name)>(nullptr)
#endif

/// Makes an operation of the bodies cpu::name and cuda::name, which is declared here.
// NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared takes none
#define SPARSESYNC_OPERATION(name)        \
  namespace cuda {                        \
  decltype(cpu::name) name;               \
  }                                       \
  inline constexpr Operation name {       \
    cpu::name, SPARSESYNC_CUDA_BODY(name) \
  }
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sparsesync
