#include "transcribe_job.h"

#include <algorithm>

#include "mstar/media/audio_source.h"

namespace mstar::apps {

void TranscribeJob::start(Frontend& frontend, decl::ApiRequest request, Result<HostValue> bytes) {
  {
    std::lock_guard lock(mutex_);
    started_ = Clock::now();
  }
  if (!bytes) return fail(std::move(bytes.error()));
  // The header is read here for the duration alone, and so that a file that is no audio fails before it waits.
  auto audio = AudioSource::open(bytes->bytes(), bytes->owner());
  if (!audio) return fail(std::move(audio.error()));
  {
    std::lock_guard lock(mutex_);
    duration_s_ = audio->duration_s();
  }
  request.media.push_back(
      {.modality = decl::Modality::audio,
       .field = "file",
       .file_name = input_.path == "-" ? "stdin" : std::filesystem::path(input_.path).filename().string(),
       .content_type = {},
       .bytes = std::move(*bytes)});
  auto id = frontend.submit(std::move(request), shared_from_this());
  if (!id) return fail(std::move(id.error()));
  std::lock_guard lock(mutex_);
  request_ = *id;
}

void TranscribeJob::abort(Frontend& frontend) {
  RequestId request;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    request = request_;
  }
  if (request.valid()) return frontend.abort(request);
  fail(cancelled("interrupted"));
}

void TranscribeJob::on_event(RequestEvent event) {
  std::lock_guard lock(mutex_);
  if (auto* chunk = std::get_if<decl::Chunk>(&event)) {
    if (chunk->format != "segment") return;
    auto segment = parse_transcript_segment(chunk->value.text());
    if (segment) {
      transcript_.segments.push_back(std::move(*segment));
    } else if (!error_) {
      error_ = std::move(segment.error());
    }
  } else {
    if (auto* failed = std::get_if<Failed>(&event)) error_ = std::move(failed->error);
    if (auto* finished = std::get_if<Finished>(&event)) {
      transcript_.language = finished->metadata.get_string("language", "").value_or("");
      duration_s_ = finished->metadata.get_number("duration", duration_s_.value_or(0)).value_or(0);
    }
    ended_ = true;
    ended_at_ = Clock::now();
  }
  wakeup_->notify();
}

bool TranscribeJob::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

std::optional<Error> TranscribeJob::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

Transcript TranscribeJob::transcript() const {
  std::lock_guard lock(mutex_);
  Transcript out = transcript_;
  out.text = whole_text(out.segments);
  out.duration_s = duration_s_.value_or(out.segments.empty() ? 0 : out.segments.back().end_s);
  return out;
}

FileProgress TranscribeJob::progress() const {
  std::lock_guard lock(mutex_);
  FileProgress out{.name = input_.shown(), .duration_s = duration_s_};
  for (const TranscriptSegment& each : transcript_.segments) out.done_s = std::max(out.done_s, each.end_s);
  out.elapsed_s = std::chrono::duration<double>((ended_ ? ended_at_ : Clock::now()) - started_).count();
  return out;
}

void TranscribeJob::fail(Error error) {
  std::lock_guard lock(mutex_);
  error_ = std::move(error);
  ended_ = true;
  ended_at_ = Clock::now();
  wakeup_->notify();
}

}  // namespace mstar::apps
