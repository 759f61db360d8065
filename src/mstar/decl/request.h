// A request as the runtime sees it, after the server has parsed it and before a surface has named its ports.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/params.h"
#include "mstar/decl/port.h"

namespace mstar::decl {

enum class Route : std::uint8_t {
  generate,
  chat_completions,
  completions,
  responses,
  embeddings,
  audio_transcriptions,
  audio_translations,
  audio_speech,
  images_generations,
  images_edits,
  videos_generations,
  realtime
};
std::string_view route_name(Route route);

// An uploaded or inlined file, or a mapped one. Owners of `bytes` (of dtype bytes): the request and the host stages
// that read it.
struct Media {
  Modality modality = Modality::audio;
  std::string field;
  std::string file_name;  // base name only
  std::string content_type;
  HostValue bytes;
};
struct ContentPart {
  std::string text;
  int media = -1;  // index into ApiRequest::media, or -1 for text
};
struct Message {
  std::string role;
  std::vector<ContentPart> parts;
};
struct ApiRequest {
  Route route = Route::generate;
  std::string model;
  std::string text;  // prompt or input
  std::vector<Message> messages;
  // As a chat template sees them: OpenAI's messages and tools, checked, as JSON arrays. Empty: none.
  std::string messages_json;
  std::string tools_json;
  std::vector<Media> media;
  std::vector<Modality> output_modalities;
  bool stream = false;
  // Of each node group, counted round: warm-up requests are spread by hand. No client sets it.
  std::optional<std::uint32_t> replica = {};
  Params fields;  // everything else
};

struct SamplingParams {
  double temperature = 0.0;
  int top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
  std::int64_t max_tokens = -1;  // -1: the model's own limit
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_ids = {};
  double presence_penalty = 0.0;   // taken from the logit of each id of the answer so far
  double frequency_penalty = 0.0;  // times how often it is there
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};
  std::int64_t min_tokens = 0;  // stop ids have no chance before
  int num_logprobs = -1;        // of likeliest tokens that are reported beside the drawn one; -1: none at all
  std::vector<std::string> stop_strings = {};
};

// What a request carries through the runtime; immutable after intake, so it is shared by all workers.
struct RequestParams {
  SamplingParams sampling;
  std::vector<Modality> output_modalities;  // chunks of others are not sent; empty: all are
  Params fields;
  std::string cache_salt = {};  // prefixes are shared between requests of the same salt only
  bool wants(Modality m) const {
    for (const Modality each : output_modalities)
      if (each == m) return true;
    return false;
  }
};

// What a surface's intake makes of a request.
struct Intake {
  std::map<PortRef, std::vector<HostValue>> inputs;
  RequestParams params;
  std::int64_t num_prompt_tokens = 0;
};

// One piece of an answer.
struct Chunk {
  Modality modality = Modality::text;
  std::string format;
  HostValue value;
  Params metadata = {};
};

}  // namespace mstar::decl
