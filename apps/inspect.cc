#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "runtime.h"

#ifndef MSTAR_VERSION
#define MSTAR_VERSION "0.1.0"
#endif

namespace mstar::apps {

std::string version_text() { return "mstar " MSTAR_VERSION; }

void add_inspect_flags(CLI::App& command, InspectFlags& flags) {
  command.add_option("model", flags.model, "a checkpoint directory or a family without weights")->required();
}

int run_inspect(const InspectFlags& flags) {
  auto opened = open_model({.model = flags.model});
  if (!opened) {
    std::fprintf(stderr, "mstar: %s\n", opened.error().message.c_str());
    return 1;
  }
  for (const auto& walk : opened->decl->walks()) std::printf("walk %s\n", walk.name.c_str());
  return 0;
}

}  // namespace mstar::apps
