// MODEL.json: a model whose training is simulated.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "sparsesync/schedule.h"

namespace sparsesync {

/// The text of the file: {"name", "layers": [{"name", "forward_s", "backward_s", "bytes"} or {...,
/// "sparse": {"rows", "width", "nnz", "densification": {"2": ..., ...}}}], "provenance": {...}}.
std::string model_json(const Model& model,
                       const std::vector<std::pair<std::string, std::string>>& provenance);

/// Reads such a file. What it says beyond the above is not looked at.
/// @throws InputError if the file cannot be read; if something is missing or makes no sense: the
///                    text names it
Model read_model(const std::filesystem::path& path);

}  // namespace sparsesync
