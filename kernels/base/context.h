// Dispatch of operations to the implementation for a device.
#pragma once

#include <type_traits>
#include <utility>

#include "sparsesync/context.h"  // IWYU pragma: export

namespace sparsesync {

namespace detail {
/// Waits for an operation on a GPU if the stream is checked.
void synchronize_if_checked(const Context& context);
}  // namespace detail

/// Runs the implementation for the context's device, with the same parameters. No other code
/// distinguishes devices. Each header declares the CPU implementations, and below them the
/// operations, with SPARSESYNC_OPERATION.
///
/// On a GPU, an operation does not wait unless its comment says that it synchronizes the stream. If
/// it finds a fault in the values that it reads, the next synchronization throws the exception (see
/// DeviceStream). Operations that were submitted in between still run. They stay inside their
/// memory, but their results are lost.
template <typename Implementation>
class Operation;

template <typename Result, typename... Arguments>
class Operation<Result(const Context&, Arguments...)> {
 public:
  using Implementation = Result(const Context&, Arguments...);
  /// @param cuda  null if the library is built without CUDA
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

/// Defines the operation `name` from cpu::name and cuda::name. Declares cuda::name.
// NOLINTBEGIN(bugprone-macro-parentheses): a declared name cannot be in parentheses
#define SPARSESYNC_OPERATION(name)                  \
  namespace cuda {                                  \
  decltype(cpu::name) name;                         \
  }                                                 \
  inline constexpr Operation name {                 \
    cpu::name, SPARSESYNC_CUDA_IMPLEMENTATION(name) \
  }
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sparsesync
