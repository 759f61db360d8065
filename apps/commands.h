// The subcommands of mstar. Each returns the process's exit status: 0 well, 1 the work failed, 2 the call was wrong.
#pragma once

#include <string>
#include <vector>

#include "mstar/base/params.h"

namespace CLI {
class App;
}

namespace mstar::apps {

std::string version_text();  // several lines

struct ModelFlags {
  std::string model;
  int threads = 0;
  std::string memory;
  std::string weights = "stored";
  int max_requests = 16;
};

struct ServeFlags {
  ModelFlags model;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string config;
};
void add_serve_flags(CLI::App& command, ServeFlags& flags);
int run_serve(const ServeFlags& flags);

struct TranscribeFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string format = "txt";
  std::string output;
  std::string language;
  std::string task = "transcribe";
  std::string prompt;
  std::vector<std::string> param_texts;  // NAME=VALUE
  Params params;                         // of param_texts
  bool force = false;
  bool quiet = false;
};
void add_transcribe_flags(CLI::App& command, TranscribeFlags& flags);
int run_transcribe(const TranscribeFlags& flags);

struct InspectFlags {
  std::string model;
};
void add_inspect_flags(CLI::App& command, InspectFlags& flags);
int run_inspect(const InspectFlags& flags);

}  // namespace mstar::apps
