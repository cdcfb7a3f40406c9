// Stacks that one thread of the host goes to and fro between.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace sparsesync::emulated_cuda {

/// A function that may be left in its midst and gone on with later.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Begins with `body`. The one before has ended.
  void begin(const std::function<void()>& body);
  /// Goes on until the body gives way or ends.
  /// @return whether it has ended
  bool resume();
  /// From the body: back to who resumed it.
  void give_way();

 private:
  static void enter();

  static constexpr std::size_t kStackBytes = std::size_t{1} << 16;
  std::unique_ptr<std::byte[]> stack_;
  const std::function<void()>* body_ = nullptr;
  bool ended_ = true;
  bool entered_ = false;
  bool closing_ = false;
  void* own_ = nullptr;     // the stack pointer while it is left
  void* caller_ = nullptr;  // that of who resumed it
  // What AddressSanitizer wants to know of a stack that is left or entered.
  void* own_fake_stack_ = nullptr;
  void* caller_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
};

}  // namespace sparsesync::emulated_cuda
