#include "variants.h"

#include <fmt/format.h>
#include <stdlib.h>  // mkdtemp

#include <algorithm>
#include <limits>
#include <string>
#include <system_error>

#include "engine/planner/calibration/replay.h"
#include "kernels/base/error.h"
#include "schemes/registry.h"

namespace sparsesync {
namespace {

constexpr Index kLm1bRows = 793'471;
constexpr Index kSmallRows = 5000;
// Tokens per worker. lm1b_tokens.npy has enough for 64 workers.
constexpr Index kLm1bBatch = 2494;
constexpr Index kCriteoBatch = 1024;

/// Returns the link that the run waits for. On the virtual clock only the replay uses the link.
LocalLink waited_for(const CompareOptions& options) {
  return options.clock == CompareClock::real ? options.link : LocalLink{};
}

}  // namespace

RealInputs::RealInputs(const std::filesystem::path& folder, bool small)
    : tokens_(read_npy(folder / "lm1b_tokens.npy").values),
      lm1b_rows_(small ? kSmallRows : kLm1bRows),
      fields_(read_npy(folder / "criteo_fields.npy")) {}

TraceSource RealInputs::lm1b(const GenerateOptions& options) const {
  return trace_from_tokens(tokens_, lm1b_rows_, kLm1bBatch, 0, options, "lm1b_tokens.npy");
}

TraceSource RealInputs::criteo(const GenerateOptions& options) const {
  return trace_from_fields(fields_, kCriteoBatch, false, options, "criteo_fields.npy");
}

TemporaryTrace::TemporaryTrace(const TraceSource& source) {
  std::string name = (std::filesystem::temp_directory_path() / "sparsesync-bench-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw IoError(name + ": cannot be created");
  folder_ = name;
  write_trace(source, folder_ / "trace", false);
  trace_ = Trace::open(folder_ / "trace");
}

TemporaryTrace::~TemporaryTrace() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

LocalComparison::LocalComparison(const Trace& trace, const CompareOptions& options)
    : workers_(trace.header().workers, waited_for(options)),
      comparison_(workers_, trace, options) {}

double MeasuredVariant::seconds(const LocalLink& link) const {
  double least = std::numeric_limits<double>::infinity();
  for (const SchemeFigures& figures : rounds) {
    least = std::min(least, figures.recorded ? replayed_times(*figures.recorded, link).median
                                             : figures.seconds_median);
  }
  return least;
}

std::vector<SchemeVariant> all_variants() {
  std::vector<SchemeVariant> variants;
  for (const SchemeEntry& entry : all_schemes()) {
    for (const Communication pattern : kCommunications) {
      SchemeOptions options;
      options.pattern = pattern;
      const SchemeVariant variant = variant_of(entry, options);
      if (variants.empty() || variants.back() != variant) variants.push_back(variant);
    }
  }
  return variants;
}

void measure_variants(std::vector<MeasuredVariant>& variants, const Trace& trace,
                      const CompareOptions& options, int rounds,
                      const std::vector<SchemeVariant>& wanted) {
  const auto measure = [&](const CompareOptions& some) {
    for (const SchemeFigures& figures : LocalComparison(trace, some)->run().schemes) {
      if (figures.skipped) continue;
      if (!figures.correct) {
        throw Error(fmt::format("{} is not correct: {}", figures.name, figures.first_difference));
      }
      const SchemeVariant variant = variant_of(scheme_named(figures.name), some.scheme_options);
      auto known =
          std::find_if(variants.begin(), variants.end(),
                       [&](const MeasuredVariant& other) { return other.variant == variant; });
      if (known == variants.end()) known = variants.insert(known, MeasuredVariant{variant, {}});
      known->rounds.push_back(figures);
    }
  };
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < kCommunications.size(); ++i) {
      CompareOptions some = options;
      some.scheme_options.pattern =
          kCommunications[(i + static_cast<std::size_t>(round)) % kCommunications.size()];
      some.schemes.clear();
      for (const SchemeVariant& variant : wanted) {
        // A scheme without patterns runs together with the first pattern of the round.
        if (variant.pattern ? *variant.pattern == some.scheme_options.pattern : i == 0) {
          some.schemes.push_back(variant.scheme);
        }
      }
      if (some.schemes.empty()) continue;
      const auto turn = static_cast<std::ptrdiff_t>(some.schemes.size()) * round / rounds;
      std::rotate(some.schemes.begin(), some.schemes.begin() + turn, some.schemes.end());
      measure(some);
    }
  }
}

}  // namespace sparsesync
