// mstar transcribe: audio files in, their text out.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <tuple>

#include "commands.h"
#include "mstar/media/audio_source.h"
#include "runtime.h"
#include "settings.h"
#include "signals.h"
#include "transcribe_job.h"
#include "transcribe_live.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr int kMaxRunning = 4;  // files at once, when the call does not say

// Owner thread: the command's. `stop` is the one thing that the signal watcher touches.
class Transcription {
 public:
  Transcription(const TranscribeFlags& flags, TranscriptFormat format)
      : flags_(flags), format_(format), board_(stderr) {}

  // Which files to read and where to write. Status 2: the call was wrong.
  Status prepare();
  bool has_work() const { return !files_.empty(); }
  int num_files() const { return static_cast<int>(files_.size()); }
  Status load(const RuntimeConfig& config);
  int run();
  // First signal: stop, keep what is done. Second, or nothing to keep yet: leave. Thread: the watcher's.
  void stop(int signal, int count);

 private:
  struct File {
    InputFile input;
    std::filesystem::path output;  // empty: standard output
    std::shared_ptr<TranscribeJob> job;
    bool settled = false;
  };
  bool to_stdout() const { return flags_.output.empty(); }
  void start_next();
  void settle(File& file);
  void print_ready();
  // False: it could not be written, which was said.
  bool deliver(const File& file, bool partial);
  bool fault(const std::string& text);  // false, always
  void draw();
  int finish();

  const TranscribeFlags& flags_;
  const TranscriptFormat format_;
  ProgressBoard board_;
  std::vector<File> files_;
  HostValue stdin_bytes_;
  std::unique_ptr<Runtime> runtime_;
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();
  std::atomic<int> stop_signal_{0};
  std::atomic<bool> working_{false};
  std::size_t num_started_ = 0, num_printed_ = 0;
  int max_running_ = 1;
  int num_faults_ = 0, num_missing_ = 0, num_skipped_ = 0, num_done_ = 0;
  double audio_s_ = 0;
  TranscribeJob::Clock::time_point began_;
};

bool Transcription::fault(const std::string& text) {
  board_.say("mstar: " + text);
  ++num_faults_;
  return false;
}

Status Transcription::prepare() {
  std::vector<std::string> faults;
  std::vector<InputFile> inputs = find_inputs(flags_.files, faults);
  for (const std::string& each : faults) fault(each);
  num_missing_ = num_faults_;
  std::vector<std::filesystem::path> outputs(inputs.size());
  if (!to_stdout()) {
    MSTAR_TRY_ASSIGN(outputs, plan_outputs(inputs, flags_.output, flags_.format));
    if (!inputs.empty()) {
      MSTAR_TRY(prepare_directory(flags_.output));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::error_code ignored;
    if (!to_stdout() && !flags_.force && std::filesystem::exists(outputs[i], ignored)) {
      board_.say(inputs[i].shown() + ": skipped, " + outputs[i].string() + " exists (--force writes it again)");
      ++num_skipped_;
      continue;
    }
    // Here, while Ctrl-C still quits at once.
    if (inputs[i].path == "-") {
      MSTAR_TRY_ASSIGN(stdin_bytes_, open_whole("-"));
    }
    files_.push_back({.input = std::move(inputs[i]), .output = std::move(outputs[i]), .job = nullptr});
  }
  return ok_status();
}

Status Transcription::load(const RuntimeConfig& config) {
  board_.draw_text("loading " + config.models.front().model);
  auto runtime = Runtime::build(config);
  board_.clear();
  if (!runtime) return std::move(runtime.error());
  runtime_ = std::move(*runtime);
  max_running_ = runtime_->max_concurrent_requests();
  return ok_status();
}

void Transcription::stop(int signal, int count) {
  if (count > 1 || !working_) {
    if (board_.on_terminal()) (void)!::write(STDERR_FILENO, "\n", 1);
    ::_exit(exit_status_of(signal));
  }
  stop_signal_ = signal;
  wakeup_->notify();
}

void Transcription::start_next() {
  File& file = files_[num_started_++];
  file.job = std::make_shared<TranscribeJob>(file.input, wakeup_);
  decl::ApiRequest request;
  request.route = flags_.task == "translate" ? decl::Route::audio_translations : decl::Route::audio_transcriptions;
  request.model = runtime_->frontend().models().front().name;
  request.fields = flags_.params;
  if (!flags_.language.empty()) request.fields.set("language", flags_.language);
  if (!flags_.prompt.empty()) request.fields.set("prompt", flags_.prompt);
  if (flags_.cues.any()) request.fields.set("word_timestamps", true);
  if (flags_.vad) request.fields.set("vad_filter", true);
  if (flags_.parallel) request.fields.set("parallel", true);
  if (flags_.word_timestamps) request.fields.set("word_timestamps", true);
  auto bytes = file.input.path == "-" ? Result<HostValue>(std::move(stdin_bytes_)) : open_whole(file.input.path);
  file.job->start(runtime_->frontend(), std::move(request), std::move(bytes));
}

int Transcription::run() {
  began_ = TranscribeJob::Clock::now();
  working_ = true;
  bool aborted = false;
  for (;;) {
    int num_running = 0;
    for (std::size_t i = 0; i < num_started_; ++i) {
      File& file = files_[i];
      if (!file.settled && file.job->ended()) settle(file);
      num_running += file.settled ? 0 : 1;
    }
    print_ready();
    if (stop_signal_ != 0 && !aborted) {
      aborted = true;
      board_.say("mstar: stopping; once more to quit at once");
      for (std::size_t i = 0; i < num_started_; ++i)
        if (!files_[i].settled) files_[i].job->abort(runtime_->frontend());
    }
    if (!aborted && num_running < max_running_ && num_started_ < files_.size()) {
      start_next();
      continue;
    }
    if (num_running == 0) return finish();
    draw();
    wakeup_->wait_for(kRedraw);
  }
}

void Transcription::settle(File& file) {
  file.settled = true;
  const std::optional<Error> error = file.job->error();
  const FileProgress progress = file.job->progress();
  const bool partial = error.has_value();
  const bool has_text = !file.job->transcript().segments.empty();
  if (partial && (error->code != Code::cancelled || stop_signal_ == 0))
    fault(file.input.shown() + ": " + error->message);
  const bool written = to_stdout() || (partial && !has_text) || deliver(file, partial);
  if (partial || !written) return;
  ++num_done_;
  audio_s_ += progress.duration_s.value_or(progress.done_s);
  if (!flags_.quiet) board_.say(done_line(progress) + (to_stdout() ? "" : " -> " + file.output.string()));
}

// Standard output gets the files in the order of the arguments.
void Transcription::print_ready() {
  while (to_stdout() && num_printed_ < num_started_ && files_[num_printed_].settled) {
    const File& file = files_[num_printed_++];
    const bool partial = file.job->error().has_value();
    if (!partial || !file.job->transcript().segments.empty()) deliver(file, partial);
  }
}

bool Transcription::deliver(const File& file, bool partial) {
  const Transcript transcript = file.job->transcript();
  const std::string note =
      file.input.shown() + ": only the first " + format_clock(file.job->progress().done_s) + " was transcribed";
  if (!to_stdout()) {
    const std::filesystem::path path = partial ? partial_path(file.output) : file.output;
    const Status written = write_atomically(path, render_transcript(transcript, format_, partial, flags_.cues));
    if (!written) return fault(written.error().message);
    std::error_code ignored;
    if (!partial) std::filesystem::remove(partial_path(file.output), ignored);
    if (partial) board_.say(note + ", written to " + path.string());
    return true;
  }
  board_.clear();
  std::string text;
  if (files_.size() == 1) {
    text = render_transcript(transcript, format_, partial, flags_.cues);
  } else if (format_ == TranscriptFormat::json) {
    text = render_json_line(transcript, file.input.shown(), partial);
  } else {
    text = (num_printed_ > 1 ? "\n==> " : "==> ") + file.input.shown() + " <==\n" +
           render_transcript(transcript, format_, partial, flags_.cues);
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return fault(std::string("cannot write to standard output: ") + std::strerror(errno));
  if (partial) board_.say(note);
  return true;
}

void Transcription::draw() {
  std::vector<FileProgress> running;
  for (std::size_t i = 0; i < num_started_; ++i)
    if (!files_[i].settled) running.push_back(files_[i].job->progress());
  board_.draw(running);
}

int Transcription::finish() {
  board_.clear();
  const double elapsed_s = std::chrono::duration<double>(TranscribeJob::Clock::now() - began_).count();
  if (files_.size() + static_cast<std::size_t>(num_skipped_) > 1 && !flags_.quiet) {
    std::string line =
        fmt::format("{} of {} files", num_done_, files_.size() + static_cast<std::size_t>(num_skipped_ + num_missing_));
    if (num_done_ > 0) line += fmt::format(", {} of audio in {:.1f} s", format_clock(audio_s_), elapsed_s);
    if (const std::string speed = format_speed(audio_s_, elapsed_s); !speed.empty())
      line += ", " + speed + " real time";
    if (num_faults_ > 0) line += fmt::format("; {} failed", num_faults_);
    if (num_skipped_ > 0) line += fmt::format("; {} skipped", num_skipped_);
    board_.say(line);
  }
  if (stop_signal_ != 0) {
    board_.say("mstar: interrupted; what was done is kept");
    return exit_status_of(stop_signal_);
  }
  return num_faults_ > 0 ? 1 : 0;
}

int complain(const Error& error, int status) {
  std::fprintf(stderr, "mstar: %s\n", error.message.c_str());
  return status;
}

}  // namespace

void add_transcribe_flags(CLI::App& command, TranscribeFlags& flags) {
  command
      .add_option("files", flags.files,
                  "audio files, directories of them, quoted patterns such as 'talks/**/*.mp3', or - for standard input")
      ->required();
  command.add_option(
      "--model", flags.model.model,
      "a checkpoint directory, or the name of weights that ./dev weights fetched (default: whisper-base)");
  command.add_option("--format", flags.format, "txt, srt, vtt or json")->capture_default_str();
  command.add_option("--output", flags.output,
                     "directory to write to, one file a recording (default: standard output)");
  command.add_flag("--force", flags.force, "write output files again that exist already");
  command.add_option("--language", flags.language, "language code such as en or de (default: detected)");
  command.add_option("--task", flags.task, "transcribe, or translate to English")->capture_default_str();
  command.add_option("--prompt", flags.prompt, "text that the recording is to be read as continuing");
  command.add_flag("--word-timestamps", flags.word_timestamps,
                   "when each word is said: json has it, and other formats' times follow the words");
  for (const auto& [name, to, what] :
       {std::tuple{"--max-line-width", &flags.cues.max_line_width, "characters of a line"},
        std::tuple{"--max-line-count", &flags.cues.max_line_count, "lines of a cue"},
        std::tuple{"--max-words-per-line", &flags.cues.max_words_per_line, "words of a cue"}})
    command.add_option(name, *to, std::string("of srt and vtt: at most so many ") + what)->check(CLI::Range(1, 1000));
  command.add_flag(
      "--live", flags.live,
      "hear standard input as it comes, a line for each turn: WAV or raw 16-bit samples of any program that records");
  command.add_option("--rate", flags.rate, "with --live: of raw samples, Hz")
      ->capture_default_str()
      ->check(CLI::Range(8000, 192000));
  command.add_option("--channels", flags.num_channels, "with --live: of raw samples")
      ->capture_default_str()
      ->check(CLI::Range(1, 8));
  command.add_flag("--parallel", flags.parallel,
                   "hear a recording's parts at the same time: speech of at most 30 s each, cut at pauses");
  command.add_flag("--vad", flags.vad, "hear only what is spoken: silence is passed over, and no text is made of it");
  command.add_option("--param", flags.param_texts, "further request fields as NAME=VALUE; may be given again");
  command.add_flag("-q,--quiet", flags.quiet, "no progress lines; faults only");
  add_model_flags(command, flags.model);
  command.footer(supported_audio_formats());
}

int run_transcribe(const TranscribeFlags& given) {
  TranscribeFlags flags = given;
  const auto format = transcript_format(flags.format);
  if (!format) return complain(format.error(), 2);
  if (flags.task != "transcribe" && flags.task != "translate")
    return complain(invalid_request("--task must be transcribe or translate, not '" + flags.task + "'"), 2);
  if (const Status read = parse_params(flags.param_texts, flags.params); !read) return complain(read.error(), 2);
  if (flags.cues.any() && *format != TranscriptFormat::srt && *format != TranscriptFormat::vtt)
    return complain(
        invalid_request("--max-line-width, --max-line-count and --max-words-per-line need --format srt or vtt"), 2);
  if (flags.live) {
    if (!flags.model.max_requests) flags.model.max_requests = 1;
    auto live_settings = model_settings(flags.model);
    if (!live_settings) return complain(live_settings.error(), 2);
    return run_transcribe_live(flags, live_settings->runtime);
  }
  const bool default_requests = !flags.model.max_requests;
  if (default_requests) flags.model.max_requests = kMaxRunning;

  Transcription work(flags, *format);
  const SignalWatch signals([&](int signal, int count) { work.stop(signal, count); });
  if (const Status prepared = work.prepare(); !prepared)
    return complain(prepared.error(), prepared.error().code == Code::invalid_request ? 2 : 1);
  if (!work.has_work()) return work.run();
  auto settings = model_settings(flags.model);
  if (!settings) return complain(settings.error(), settings.error().code == Code::invalid_request ? 2 : 1);
  RuntimeConfig& config = settings->runtime;
  config.max_requests_given = !default_requests;
  // Each request that may run at once costs memory for its caches.
  if (!flags.parallel) config.max_concurrent_requests = std::min(config.max_concurrent_requests, work.num_files());
  if (const Status loaded = work.load(config); !loaded) return complain(loaded.error(), 1);
  return work.run();
}

}  // namespace mstar::apps
