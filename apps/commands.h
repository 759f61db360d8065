// The subcommands of mstar. Each returns the process's exit status: 0 well, 1 the work failed, 2 the call was wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mstar/base/params.h"
#include "mstar/text/subtitles.h"

namespace CLI {
class App;
}

namespace mstar::apps {

std::string version_text();  // several lines

// Shared by every command that runs a model. What is not given leaves the YAML's value or the default.
struct ModelFlags {
  std::string model;  // a checkpoint, a name of cached weights, a config.yaml; empty: the default weights
  std::optional<int> threads;
  std::optional<int> stay_awake_us;
  std::string memory;
  std::string device;
  std::string weights;
  std::string load_format;
  std::optional<int> max_requests;
  bool batch_invariant = false;
  std::vector<std::string> profile;  // "phases", "trace=FILE"; of serve and run alone
};

struct ServeFlags {
  ModelFlags model;                 // its `model` is not read
  std::vector<std::string> models;  // served together; or one config.yaml
  std::string host;
  std::optional<int> port;
  std::string config;
  std::vector<std::string> aliases;
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins;
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
  bool word_timestamps = false;
  bool vad = false;            // hear only what is spoken
  bool parallel = false;       // in parts that are heard at the same time
  bool live = false;           // standard input as it comes
  std::uint32_t rate = 16000;  // of raw sound
  int num_channels = 1;
  CueRules cues;  // of srt and vtt
  bool force = false;
  bool quiet = false;
};
void add_transcribe_flags(CLI::App& command, TranscribeFlags& flags);
int run_transcribe(const TranscribeFlags& flags);

struct RunFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string text;
  std::vector<std::string> output_modalities;
  std::vector<std::string> params;  // NAME=VALUE
  std::string output = ".";
};
void add_run_flags(CLI::App& command, RunFlags& flags);
int run_run(const RunFlags& flags);

struct ChatFlags {
  ModelFlags model;
  std::string url;  // a server; empty: the model runs in this process
  std::string api_key;
  std::string system;
  std::vector<std::string> params;  // NAME=VALUE
};
void add_chat_flags(CLI::App& command, ChatFlags& flags);
int run_chat(const ChatFlags& flags);

struct InspectFlags {
  ModelFlags model;
  bool json = false;
};
void add_inspect_flags(CLI::App& command, InspectFlags& flags);
int run_inspect(const InspectFlags& flags);

struct BenchFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model;
  std::string api_key;
  std::string route = "completions";
  std::optional<int> concurrency;
  std::optional<double> rate;
  bool offline = false;
  int num_requests = 64;
  int num_warmup = 0;
  std::string input = "128";
  std::string output = "128";
  std::string vocab = "1000-9999";
  bool ignore_eos = false;
  double temperature = 0;
  std::uint64_t seed = 0;
  double timeout_s = 600;
  int client_threads = 1;
  bool kernel_times = false;
  std::optional<int> server_pid;
  std::string json;
};
void add_bench_flags(CLI::App& command, BenchFlags& flags);
int run_bench(const BenchFlags& flags);

}  // namespace mstar::apps
