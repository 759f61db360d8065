// mstar run: one request through the whole runtime, with no HTTP. A newcomer can read the architecture from here:
//   settings -> Runtime (models, workers, conductor) -> Frontend::submit -> chunks -> one terminal event.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "media_file.h"
#include "output_files.h"
#include "profile_report.h"
#include "settings.h"
#include "waiting_sink.h"

namespace mstar::apps {
namespace {

// What the HTTP server would make of a POST to /generate. The model's surface for that route turns it into port values.
Result<decl::ApiRequest> make_request(const RunFlags& flags, const std::string& model) {
  decl::ApiRequest out;
  out.route = decl::Route::generate;
  out.model = model;
  out.text = flags.text;
  for (const std::string& name : flags.output_modalities) {
    const auto modality = decl::modality_from_name(name);
    if (!modality) return invalid_request("--output-modalities: '" + name + "' is no modality");
    out.output_modalities.push_back(*modality);
  }
  if (out.output_modalities.empty()) out.output_modalities = {decl::Modality::text};
  for (const std::string& file : flags.files) {
    MSTAR_TRY_ASSIGN(decl::Media media, read_media(file));
    out.media.push_back(std::move(media));
  }
  MSTAR_TRY(parse_params(flags.params, out.fields));
  return out;
}

// Prints text as it comes and writes each chunk of media to a file. Called on the conductor's thread.
class ChunkWriter {
 public:
  explicit ChunkWriter(std::string directory) : directory_(std::move(directory)) {}

  void write(const decl::Chunk& chunk) {
    const std::string_view bytes = chunk.value.text();
    if (bytes.empty()) return;  // metadata alone
    if (chunk.modality == decl::Modality::text) {
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      if (chunk.format != "utf8") std::fputc('\n', stdout);  // records, such as a segment of speech, not running text
      std::fflush(stdout);
      return;
    }
    const auto path = std::filesystem::path(directory_) / chunk_file_name(chunk, num_files_++);
    const Status written = write_atomically(path, bytes);
    std::fprintf(stderr, "mstar: %s\n", written ? ("wrote " + path.string()).c_str() : written.error().message.c_str());
    if (!written) failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  std::string directory_;
  int num_files_ = 0;
  bool failed_ = false;
};

Result<int> run(const RunFlags& flags) {
  // 1. What to run: flags over YAML over defaults.
  MSTAR_TRY_ASSIGN(Settings settings, model_settings(flags.model));
  if (!flags.model.max_requests) settings.runtime.max_concurrent_requests = 1;

  // 2. The runtime: declarations are validated and compiled, memory is planned, workers load their weights.
  MSTAR_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime, Runtime::build(settings.runtime));
  Frontend& frontend = runtime->frontend();

  // 3. The request. An Error here is one about the request itself: nothing has run.
  MSTAR_TRY_ASSIGN(decl::ApiRequest request, make_request(flags, frontend.models().front().name));
  ChunkWriter writer(flags.output);
  const auto sink = std::make_shared<WaitingSink>([&](const decl::Chunk& chunk) { writer.write(chunk); });
  MSTAR_TRY(frontend.submit(std::move(request), sink));

  // 4. Chunks reach the sink while the partitions' plans choose walk after walk; then exactly one end.
  MSTAR_TRY_ASSIGN(const Finished finished, sink->wait());
  std::fprintf(stderr, "mstar: %lld tokens\n", static_cast<long long>(finished.usage.completion_tokens));
  report_profile(*runtime);
  return writer.failed() ? 1 : 0;
}

}  // namespace

void add_run_flags(CLI::App& command, RunFlags& flags) {
  command.add_option("model", flags.model.model,
                     "a checkpoint directory, fetched weights, a config.yaml, or a toy model");
  command.add_option("--file", flags.files, "a file to send, such as speech.wav or image:photo; may be given again");
  command.add_option("--text", flags.text, "the text to send");
  command.add_option("--output-modalities", flags.output_modalities, "what to ask for: text, image, audio, ...")
      ->delimiter(',');
  command.add_option("--param", flags.params, "further request fields as NAME=VALUE; may be given again");
  command.add_option("--output", flags.output, "directory for chunks of media")->capture_default_str();
  add_model_flags(command, flags.model);
  add_profile_flag(command, flags.model);
}

int run_run(const RunFlags& flags) {
  const auto status = run(flags);
  if (status) return *status;
  std::fprintf(stderr, "mstar: %s\n", status.error().message.c_str());
  return status.error().code == Code::invalid_request ? 2 : 1;
}

}  // namespace mstar::apps
