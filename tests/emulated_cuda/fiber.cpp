#include "tests/emulated_cuda/fiber.h"

#include <cstdint>

#if !defined(__x86_64__)
#error "fibers are written for x86-64: see switch_stack()"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// switch_stack(from, to): saves the callee-saved registers (System V ABI) on the current stack,
// stores the stack pointer in *from, and resumes `to`. It makes no system call, unlike
// swapcontext(), which saves the signal mask.
asm(R"(
.text
.globl sparsesync_switch_stack
.type sparsesync_switch_stack, @function
sparsesync_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sparsesync_switch_stack, .-sparsesync_switch_stack
)");
extern "C" void sparsesync_switch_stack(void** from, void* to);

namespace sparsesync::emulated_cuda {
namespace {

// ThreadSanitizer does not know the fibers and treats all fibers of an OS thread as one thread. It
// therefore finds races between blocks, but not within a block. With its interface for fibers, each
// fiber has a clock, and the tests of unite() take more than 10 times as long.
thread_local Fiber* entering = nullptr;

void leave_to([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* bottom,
              [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#endif
}

void come_back([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** bottom,
               [[maybe_unused]] std::size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
#endif
}

}  // namespace

Fiber::Fiber() : stack_(new std::byte[kStackBytes]) {
  // The stack looks as if it had been left at the start of enter(): six registers, then the return
  // address. A function starts with its stack pointer 8 below a multiple of 16.
  auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + kStackBytes) & ~std::uintptr_t{15};
  auto* const words = reinterpret_cast<void**>(top) - 2;
  words[0] = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 1; i <= 6; ++i) words[-i] = nullptr;
  own_ = words - 6;
}

Fiber::~Fiber() {
  // Resume the fiber a last time, so that AddressSanitizer forgets its stack.
  closing_ = true;
  if (entered_) resume();
}

void Fiber::begin(const std::function<void()>& body) {
  body_ = &body;
  ended_ = false;
}

bool Fiber::resume() {
  entering = this;
  entered_ = true;
  leave_to(&caller_fake_stack_, stack_.get(), kStackBytes);
  sparsesync_switch_stack(&caller_, own_);
  come_back(caller_fake_stack_, nullptr, nullptr);
  return ended_;
}

void Fiber::give_way() {
  leave_to(closing_ ? nullptr : &own_fake_stack_, caller_stack_, caller_stack_bytes_);
  sparsesync_switch_stack(&own_, caller_);
  come_back(own_fake_stack_, &caller_stack_, &caller_stack_bytes_);
}

void Fiber::enter() {
  Fiber* const fiber = entering;
  come_back(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
  while (true) {
    (*fiber->body_)();
    fiber->ended_ = true;
    fiber->give_way();
    if (fiber->closing_) fiber->give_way();  // never returns
  }
}

}  // namespace sparsesync::emulated_cuda
