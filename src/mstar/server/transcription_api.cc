#include "mstar/server/transcription_api.h"

#include <algorithm>
#include <array>
#include <optional>

#include "mstar/server/ascii.h"
#include "mstar/server/json_text.h"
#include "mstar/server/transcript.h"

namespace mstar::server {
namespace {

constexpr std::array<std::string_view, 5> kFormatNames = {"json", "text", "srt", "vtt", "verbose_json"};

Error bad_field(std::string_view field, std::string message) {
  return invalid_request(std::move(message)).with_field(std::string(field));
}

// Gathers chunks into a transcript and tells what text each added.
class TranscriptBuilder {
 public:
  Result<std::string> add(const decl::Chunk& chunk) {
    if (chunk.modality != decl::Modality::text) return std::string();
    std::string delta(chunk.value.text());
    if (chunk.format == "segment") {
      MSTAR_TRY_ASSIGN(TranscriptSegment segment, parse_transcript_segment(chunk.value.text()));
      delta = segment.text;
      transcript_.segments.push_back(std::move(segment));
    }
    // Models begin each segment with a space; the transcript does not.
    if (transcript_.text.empty()) delta.erase(0, std::min(delta.size(), delta.find_first_not_of(" \t\r\n")));
    transcript_.text += delta;
    return delta;
  }
  Status finish(const Finished& finished) {
    MSTAR_TRY_ASSIGN(transcript_.language, finished.metadata.get_string("language", ""));
    MSTAR_TRY_ASSIGN(transcript_.duration_s, finished.metadata.get_number("duration", finished.usage.audio_seconds));
    return ok_status();
  }
  const Transcript& transcript() const { return transcript_; }

 private:
  Transcript transcript_;
};

class WholeTranscript final : public AnswerWriter {
 public:
  WholeTranscript(TranscriptFormat format, VerboseOptions options) : format_(format), options_(options) {}

  bool streams() const override { return false; }
  std::string_view content_type() const override {
    switch (format_) {
      case TranscriptFormat::text:
      case TranscriptFormat::srt:
        return "text/plain; charset=utf-8";
      case TranscriptFormat::vtt:
        return "text/vtt; charset=utf-8";
      case TranscriptFormat::json:
      case TranscriptFormat::verbose_json:
        break;
    }
    return "application/json";
  }
  Status on_chunk(std::size_t, const decl::Chunk& chunk, std::string&) override {
    MSTAR_TRY(builder_.add(chunk));
    return ok_status();
  }
  Status on_finished(std::size_t, const Finished& finished, std::string& out) override {
    MSTAR_TRY(builder_.finish(finished));
    out += write_transcript(builder_.transcript(), format_, options_);
    return ok_status();
  }
  void on_failed(const HttpError&, std::string&) override {}

 private:
  TranscriptFormat format_;
  VerboseOptions options_;
  TranscriptBuilder builder_;
};

class StreamedTranscript final : public AnswerWriter {
 public:
  bool streams() const override { return true; }
  std::string_view content_type() const override { return "text/event-stream; charset=utf-8"; }
  std::string_view keep_alive_frame() const override { return kSseKeepAlive; }

  Status on_chunk(std::size_t, const decl::Chunk& chunk, std::string& out) override {
    MSTAR_TRY_ASSIGN(const std::string delta, builder_.add(chunk));
    if (delta.empty()) return ok_status();
    std::string json = "{\"type\":\"transcript.text.delta\",\"delta\":";
    append_json_string(json, delta);
    json += '}';
    append_sse(out, json);
    return ok_status();
  }
  Status on_finished(std::size_t, const Finished& finished, std::string& out) override {
    MSTAR_TRY(builder_.finish(finished));
    const Usage& usage = finished.usage;
    std::string json = "{\"type\":\"transcript.text.done\",\"text\":";
    append_json_string(json, builder_.transcript().text);
    json += ",\"usage\":{\"type\":\"tokens\",\"input_tokens\":" + std::to_string(usage.prompt_tokens) +
            ",\"output_tokens\":" + std::to_string(usage.completion_tokens) +
            ",\"total_tokens\":" + std::to_string(usage.prompt_tokens + usage.completion_tokens) + "}}";
    append_sse(out, json);
    return ok_status();
  }
  void on_failed(const HttpError& error, std::string& out) override { append_sse(out, error_body(error)); }

 private:
  TranscriptBuilder builder_;
};

Result<TranscriptFormat> read_format(const Params& fields) {
  auto name = fields.get_string("response_format", "json");
  if (name) {
    const auto* it = std::find(kFormatNames.begin(), kFormatNames.end(), *name);
    if (it != kFormatNames.end()) return static_cast<TranscriptFormat>(it - kFormatNames.begin());
  }
  return bad_field("response_format", "response_format must be one of json, text, srt, vtt, verbose_json");
}

Result<VerboseOptions> read_granularities(const Params& fields, TranscriptFormat format) {
  constexpr std::string_view kField = "timestamp_granularities";
  VerboseOptions options;
  MSTAR_TRY_ASSIGN(const std::vector<std::string> wanted, fields.get_strings(kField));
  if (wanted.empty()) {
    MSTAR_TRY_ASSIGN(options.words, fields.get_bool("word_timestamps", false));
    return options;
  }
  if (format != TranscriptFormat::verbose_json)
    return bad_field(kField, "timestamp_granularities needs response_format verbose_json");
  options.segments = false;
  for (const std::string& each : wanted) {
    if (each != "word" && each != "segment")
      return bad_field(kField, "timestamp_granularities must be of word and segment");
    if (each == "word") options.words = true;
    if (each == "segment") options.segments = true;
  }
  return options;
}

// Lines of subtitles, which are made of words: those are asked of the model.
Result<CueRules> read_cue_rules(const Params& fields, TranscriptFormat format) {
  CueRules out;
  const auto read = [&](const char* name, int& to) -> Status {
    if (!fields.has(name)) return ok_status();
    if (format != TranscriptFormat::srt && format != TranscriptFormat::vtt)
      return bad_field(name, "'" + std::string(name) + "' needs response_format srt or vtt");
    const auto value = fields.get_int(name, 0);
    if (!value || *value < 1 || *value > 1000)
      return bad_field(name, "'" + std::string(name) + "' must be a whole number from 1 to 1000");
    to = static_cast<int>(*value);
    return ok_status();
  };
  MSTAR_TRY(read("max_line_width", out.max_line_width));
  MSTAR_TRY(read("max_line_count", out.max_line_count));
  MSTAR_TRY(read("max_words_per_line", out.max_words_per_line));
  return out;
}

// The kinds and ranges that hold for every model.
Status check_common(const Params& fields) {
  MSTAR_TRY_ASSIGN(const double temperature, fields.get_number("temperature", 0.0));
  if (temperature < 0 || temperature > 1) return bad_field("temperature", "temperature must be from 0 to 1");
  MSTAR_TRY(fields.get_int("seed", 0));
  MSTAR_TRY_ASSIGN(const std::int64_t max_tokens, fields.get_int("max_tokens", 1));
  if (max_tokens < 1) return bad_field("max_tokens", "max_tokens must be at least 1");
  MSTAR_TRY(fields.get_string("language", ""));
  return ok_status();
}

Params without(const Params& fields, std::initializer_list<std::string_view> names) {
  Params out;
  for (const auto& [name, value] : fields.values())
    if (std::find(names.begin(), names.end(), name) == names.end()) out.set(name, value);
  return out;
}

Status take_file(Form& form, decl::ApiRequest& request) {
  if (form.files.empty()) return bad_field("file", "the field file is missing, or it is not a file");
  for (const Upload& each : form.files)
    if (each.field != "file") return bad_field(each.field, "'" + each.field + "' may not be a file");
  if (form.files.size() > 1) return bad_field("file", "only one file can be sent");
  Upload& upload = form.files.front();
  if (upload.bytes.empty()) return bad_field("file", "the file is empty");
  decl::Media media;
  media.modality = decl::Modality::audio;
  media.field = std::move(upload.field);
  media.file_name = std::move(upload.file_name);
  media.content_type = std::move(upload.content_type);
  media.bytes = HostValue::shared_blob(std::make_shared<const std::string>(std::move(upload.bytes)));
  request.media.push_back(std::move(media));
  return ok_status();
}

}  // namespace

Result<Call> make_transcription(Form form, bool translate) {
  Call call;
  decl::ApiRequest& request = call.requests.emplace_back();
  request.route = translate ? decl::Route::audio_translations : decl::Route::audio_transcriptions;
  MSTAR_TRY_ASSIGN(request.model, form.fields.get_string("model", ""));
  if (request.model.empty()) return bad_field("model", "the field model is missing");
  MSTAR_TRY(take_file(form, request));
  MSTAR_TRY_ASSIGN(const TranscriptFormat format, read_format(form.fields));
  MSTAR_TRY_ASSIGN(VerboseOptions options, read_granularities(form.fields, format));
  options.translate = translate;
  MSTAR_TRY_ASSIGN(options.cues, read_cue_rules(form.fields, format));
  MSTAR_TRY_ASSIGN(request.stream, form.fields.get_bool("stream", false));
  if (request.stream && format != TranscriptFormat::json && format != TranscriptFormat::text)
    return bad_field("response_format", "response_format must be json or text when stream is true");
  MSTAR_TRY(check_common(form.fields));
  MSTAR_TRY_ASSIGN(request.text, form.fields.get_string("prompt", ""));
  request.output_modalities = {decl::Modality::text};
  request.fields = without(form.fields, {"model", "stream"});
  if (options.cues.any()) request.fields.set("word_timestamps", true);
  if (request.stream) {
    call.answer = std::make_unique<StreamedTranscript>();
  } else {
    call.answer = std::make_unique<WholeTranscript>(format, options);
  }
  return call;
}

void append_sse(std::string& out, std::string_view json) {
  // JSON holds no raw line breaks, so one data line is enough.
  out.append("data: ").append(json).append("\n\n");
}

}  // namespace mstar::server
