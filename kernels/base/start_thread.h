// Starting threads.
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/float_environment.h"

namespace sparsesync {

/// @throws Error naming the thread, why it could not be started, and how to mend it
[[noreturn]] void throw_not_started(std::string_view name, const std::system_error& error);

/// Starts a thread that runs body(), with the default floating-point environment: a new thread has
/// that of the thread that starts it.
/// @param name  the subject of the error's text, such as "the progress thread"
/// @throws Error if the system has no more threads, or no memory for one
template <typename Body>
std::thread start_thread(std::string_view name, Body body) {
  try {
    return std::thread([body = std::move(body)]() mutable {
      const DefaultFloatEnvironment default_modes;
      body();
    });
  } catch (const std::system_error& error) {
    throw_not_started(name, error);
  }
}

}  // namespace sparsesync
