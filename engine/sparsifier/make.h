// Makes each sparsifier. For make_sparsifier() alone, which has looked at what is given.
#pragma once

#include <memory>
#include <vector>

#include "sparsesync/sparsifier.h"

namespace sparsesync {

/// Selecting::top_k. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_top_k(const Context& context, std::vector<TensorSpec> tensors,
                                       const SparsifierOptions& options);
/// Selecting::threshold. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_threshold(const Context& context, std::vector<TensorSpec> tensors,
                                           const SparsifierOptions& options);
/// Selecting::chunks. Does not synchronize the stream.
std::unique_ptr<Sparsifier> make_coarse_grained(const Context& context,
                                                std::vector<TensorSpec> tensors,
                                                const SparsifierOptions& options);

}  // namespace sparsesync
