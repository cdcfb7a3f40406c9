// A reference to something that can be called.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace sparsesync {

/// Unlike std::function it owns nothing and allocates nothing; the callable outlives it. For
/// parameters: a lambda written in the call lives long enough.
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
