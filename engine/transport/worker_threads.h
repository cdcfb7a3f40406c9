// Workers that are threads of this process: runs them and finds out which one failed first.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "sparsesync/transport.h"

namespace sparsesync {

/// Runs `work` for each end of a network in a thread of its own, and waits for all.
/// @param work       called with the end and its place; the end is gone once it has returned
/// @param meanwhile  called from the calling thread again and again until then, where there is one
/// @return what each threw, by place; null where nothing was thrown
std::vector<std::exception_ptr> run_in_threads(
    std::vector<std::unique_ptr<Transport>> ends,
    const std::function<void(std::unique_ptr<Transport>& end, std::size_t place)>& work,
    const std::function<void()>& meanwhile = nullptr);

/// The error that several workers' errors follow from: a worker that only lost another one, or was
/// told, is not it where there is another.
/// @param errors  null where a worker had none
/// @return null if all are
std::exception_ptr first_cause(const std::vector<std::exception_ptr>& errors);

}  // namespace sparsesync
