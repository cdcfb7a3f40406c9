#include "analysis/cli/output.h"

namespace sparsesync {
namespace {

/// An object whose keys are the first numbers.
template <typename Pairs>
Json by_number(const Pairs& pairs) {
  Json json = Json::object();
  for (const auto& [number, value] : pairs) json[std::to_string(number)] = value;
  return json;
}

Json zipf_json(const std::optional<ZipfLaw>& law) {
  if (!law) return nullptr;
  return {{"s", law->s}, {"ci", {law->ci.low, law->ci.high}}};
}

Json tensor_json(const TensorSpec& tensor, const TraceHeader& trace, const TensorProfile& profile) {
  Json hot_rows = Json::array();
  for (const CountedRow& hot : profile.hot_rows) {
    hot_rows.push_back({{"row", hot.row}, {"share", profile.share_of(hot)}});
  }
  const Spread& row_density = profile.row_density;
  return {{"name", tensor.name},
          {"rows", tensor.rows},
          {"width", tensor.width},
          {"dtype", name_of(tensor.dtype)},
          {"workers", trace.workers},
          {"steps", trace.steps},
          {"row_density",
           {{"mean", row_density.mean},
            {"min", row_density.min},
            {"max", row_density.max},
            {"by_step", profile.row_density_of_step}}},
          {"density", profile.density},
          {"overlap",
           {{"mean", profile.overlap.mean},
            {"stdev", profile.overlap.stdev},
            {"histogram", profile.overlap.histogram},
            {"pairs", profile.overlap.pairs}}},
          {"densification", by_number(profile.densification)},
          {"skewness", by_number(profile.skewness)},
          {"blocks", by_number(profile.blocks)},
          {"hot_rows", hot_rows},
          {"drift", profile.drift},
          {"zipf", zipf_json(profile.zipf)},
          {"touch_histogram", by_number(profile.touch_histogram)}};
}

}  // namespace

std::string profile_json(const TraceHeader& trace, const std::vector<TensorProfile>& profiles,
                         const Json& provenance) {
  Json tensors = Json::array();
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    tensors.push_back(tensor_json(trace.tensors[i], trace, profiles[i]));
  }
  return json_text({{"tensors", tensors}, {"provenance", provenance}});
}

}  // namespace sparsesync
