// Runs workers as threads of this process, and finds the cause of their errors.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// Runs `work` in one thread for each endpoint of a network, and waits for all threads.
/// @param work       called with the endpoint and its index. The endpoint is destroyed when `work`
///                   returns
/// @param meanwhile  called repeatedly from the calling thread until all threads have ended; may be
///                   null
/// @return the exception of each thread, by index; null if there is none
std::vector<std::exception_ptr> run_in_threads(
    std::vector<std::unique_ptr<Transport>> ends,
    const std::function<void(std::unique_ptr<Transport>& end, std::size_t place)>& work,
    const std::function<void()>& meanwhile = nullptr);

/// Returns the error that caused the other workers' errors. AbortedError and PeerLostError count as
/// consequences if a worker has another error.
/// @param errors  by worker; null if there is none
/// @return null if all are null
std::exception_ptr first_cause(const std::vector<std::exception_ptr>& errors);

}  // namespace sparsesync
