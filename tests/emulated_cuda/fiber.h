// Stacks that one host thread switches between.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace sparsesync::emulated_cuda {

/// A function that can be suspended in the middle and resumed later.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Prepares `body` to run. The previous body must have ended.
  void begin(const std::function<void()>& body);
  /// Runs the body until it yields or ends.
  /// @return whether it has ended
  bool resume();
  /// Yields from the body to the caller of resume().
  void give_way();

 private:
  static void enter();

  static constexpr std::size_t kStackBytes = std::size_t{1} << 16;
  std::unique_ptr<std::byte[]> stack_;
  const std::function<void()>* body_ = nullptr;
  bool ended_ = true;
  bool entered_ = false;
  bool closing_ = false;
  void* own_ = nullptr;     // stack pointer while the fiber is suspended
  void* caller_ = nullptr;  // stack pointer of the caller of resume()
  // Data that AddressSanitizer needs when a stack is left or entered.
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace sparsesync::emulated_cuda
