// What language models share towards their clients: prompts and chats in, text and log-probabilities out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mstar/decl/decl.h"
#include "mstar/models/checkpoint_text.h"

namespace mstar::models {

// Owners: the surfaces' closures and each request's emitter.
struct TextModel {
  CheckpointText text;     // a null chat_template: no chat
  int context_tokens = 0;  // prompt and answer together
  int vocab = 0;
  std::size_t max_token_bytes = 0;  // of the longest token; 0: not known; add_text_surfaces fills it in
  decl::PortRef prompt;             // i32 [n], from the request
  decl::PortRef token;              // i32 [1], to the client
  // f32 [1 + n, 2], to the client: (id, log-probability) of the drawn token and of the n likeliest.
  decl::PortRef logprobs;
};

// Adds /generate, /v1/completions and, with a template, /v1/chat/completions; and the text codec.
//
// A field that a request leaves out is what text.sampling_defaults says, or else the default of docs/api.md. Fields
// read: temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
// max_tokens or max_completion_tokens (by default all the room there is; 16 for completions), min_tokens, ignore_eos,
// stop, stop_token_ids, logprobs (bool, or a number for completions), top_logprobs, logit_bias_ids with
// logit_bias_values, prompt_ids (completions), cache_salt (only requests with the same one share
// cached prefixes), parse_special (completions: special tokens that are spelt out in the
// prompt are read as such; not by default), add_special_tokens (completions; by default the tokenizer's own come before
// the prompt), add_generation_prompt, enable_thinking and separate_reasoning (chats; by default thoughts are no part of
// the text). A value out of range is an invalid_request with the
// field's name; a prompt that leaves no room for one token too, with field "messages" or "prompt".
void add_text_surfaces(decl::Decl& d, TextModel model);

// The sampling parameters of a request; shared by all its surfaces.
Result<decl::SamplingParams> read_sampling(const Params& fields, int vocab);

// A chat as token ids. What users wrote never becomes a special token, whatever it spells.
Result<std::vector<std::int32_t>> encode_chat(const TextModel& model, const decl::ApiRequest& request);

}  // namespace mstar::models
