// What the programs share that make a table of schemes: their options, and how one runs.
#pragma once

#include <fmt/format.h>

#include <array>
#include <exception>
#include <string>

#include "analysis/cli/command.h"

namespace sparsesync {

inline constexpr std::array kWorkers{2, 4, 8, 16, 32, 64};

/// What all of these programs are told.
struct TableArguments {
  std::string data;  // the folder of RealInputs
  std::string out;
  int repeat = 0;
  int most_workers = kWorkers.back();
  bool small = false;
};

/// @param repeat  the help text of --repeat
inline void add_table_options(CLI::App& app, TableArguments& given, const std::string& repeat) {
  app.add_option("--out", given.out, "JSON");
  add_count(app, "--repeat", given.repeat, 1, 1000, repeat);
  add_count(app, "--most-workers", given.most_workers, 2, kWorkers.back(),
            "inputs with more are left out");
  app.add_flag("--small", given.small, "small tables: to see that it works");
}

/// Reads the command line into `given`, makes a Table of it, prints that and writes its JSON.
/// @return the program's exit status
template <typename Table, typename Arguments>
int make_table(CLI::App& app, const Arguments& given, int count, char** arguments) {
  CLI11_PARSE(app, count, arguments);
  try {
    JsonOutput json(given.out);
    Table table(given);
    table.run();
    print(json.tables(), table.text());
    json.write(table.as_json());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", app.get_name(), error.what());
    return 1;
  }
}

}  // namespace sparsesync
