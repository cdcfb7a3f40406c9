// `sparsesync profile`: how sparse a trace's gradients are, how alike its workers, how skewed.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "analysis/cli/command.h"
#include "analysis/cli/output.h"
#include "analysis/cli/progress.h"
#include "analysis/cli/units.h"
#include "analysis/profile/profile.h"

namespace sparsesync {
namespace {

struct ProfileArguments {
  std::string trace;
  std::string partitions;
  std::string json;
};

ProfileOptions options_from(const ProfileArguments& given) {
  constexpr std::int64_t kMostPartitions = 1 << 20;
  ProfileOptions options;
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (given.partitions.empty()) return options;
  options.partitions.clear();
  for (const std::string& text : between_commas("--partitions", given.partitions)) {
    options.partitions.push_back(
        static_cast<int>(parse_count("--partitions", text, 1, kMostPartitions)));
  }
  std::sort(options.partitions.begin(), options.partitions.end());
  options.partitions.erase(std::unique(options.partitions.begin(), options.partitions.end()),
                           options.partitions.end());
  return options;
}

void run_profile(const ProfileArguments& given) {
  ProfileOptions options = options_from(given);
  const Trace trace = Trace::open(given.trace);
  JsonOutput json(given.json);
  Progress progress("profiling");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress.update(done, total); };
  const std::vector<TensorProfile> profiles = profile(trace, options);
  progress.erase();
  const TraceHeader& header = trace.header();
  std::string text = fmt::format("{} worker{}, {} step{}\n\n", format_count(header.workers),
                                 header.workers == 1 ? "" : "s", format_count(header.steps),
                                 header.steps == 1 ? "" : "s");
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    text += profile_table(header.tensors[i], profiles[i]);
  }
  print(json.tables(), text);
  Json provenance = provenance_json();
  provenance["trace"] = given.trace;
  provenance["seed"] = header.seed;
  json.write(profile_json(header, profiles, provenance));
}

}  // namespace

void add_profile_command(CLI::App& app) {
  auto given = std::make_shared<ProfileArguments>();
  CLI::App& command = *app.add_subcommand(
      "profile", "Look at a trace's gradients: density, overlap, densification, skew, hot rows");
  command.add_option("trace", given->trace, "A trace's folder")->type_name("TRACE")->required();
  command
      .add_option("--partitions", given->partitions,
                  "Numbers of even ranges that skewness is told for (8,16,64,128 if not given)")
      ->type_name("P,...");
  add_json(command, given->json);
  command.footer(
      "docs/measures.md says what each measure is.\n"
      "Example:\n"
      "  sparsesync profile TRACE --json profile.json\n"
      "  python -m sparsesync.report profile.json -o page.html");
  command.callback([given] { run_profile(*given); });
}

}  // namespace sparsesync
