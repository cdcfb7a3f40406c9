// A non-owning reference to a callable.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace sparsesync {

/// A reference to a callable, for function parameters. Unlike std::function it owns nothing and
/// allocates nothing. The callable must outlive it; a lambda written in the call does.
template <typename Signature>
class FunctionView;

template <typename Result, typename... Arguments>
class FunctionView<Result(Arguments...)> {
 public:
  template <typename Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionView> &&
           std::is_invocable_r_v<Result, Callable&, Arguments...>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload)
      FunctionView(Callable&& callable)
      : callable_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* of, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(of))(
              std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const {
    return call_(callable_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* callable_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace sparsesync
