// Whisper's host components: windows of audio in, segments of text out.
#pragma once

#include "mstar/decl/component.h"
#include "mstar/models/whisper/feature_buffers.h"
#include "mstar/models/whisper/whisper_config.h"
#include "mstar/ops/mel/mel.h"

namespace mstar::models {

// The request's field `prompt`: what its client sent, as the tokens that count of it (prompt_tokens). Encoded once, at
// intake; the plan and the segment stage begin with it.
void encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, decl::RequestParams& params);
// What encode_prompt left, or nothing.
std::vector<std::int32_t> prompt_history(const decl::RequestParams& params);

// Inputs: file (bytes), seek [2] i32 in mel frames: the window's start, and an end that it does not pass. Outputs: pcm
// [samples], window [kWindowFields] i32, mel_max [1] f32 (NaN when the window is the whole recording: the encoder then
// takes its own maximum), length [1] f32 (seconds), speech i32 (begins and ends of the stretches that are heard, in
// samples; empty: all is). With WhisperOptions::speech the recording is what is spoken in it, found in a pass of its
// own. Keeps an open decoder and the samples of the running window only; the first run of a recording of more than one
// window reads all of it, unless it is abandoned meanwhile. Errors: invalid_request for anything wrong with the file.
std::unique_ptr<decl::HostStage> make_audio_stage(std::shared_ptr<const WhisperConfig> config,
                                                  const decl::RequestParams& params);

// The audio stage and what the device component "features" does (whisper_body.h) in one run, for devices that work
// beside the host. Inputs: file, seek. Outputs: mel [num_mels, window frames] of WhisperConfig::mels(), window, length,
// speech. `buffers` are of num_mels rows of a window's frames. Cost: 1.5 ms for 30 s of content on one core.
std::unique_ptr<decl::HostStage> make_window_stage(const std::shared_ptr<const WhisperConfig>& config,
                                                   const decl::RequestParams& params,
                                                   std::shared_ptr<const MelPlan> plan,
                                                   std::shared_ptr<FeatureBuffers> buffers);

// Inputs: window, language [1] i32, first, first_score, no_speech, optionally token and score of each loop iteration,
// speech, length. Outputs: segments (utf8, JSON of one segment each), next [1] i32 (where the next window starts),
// history i32 (prompt tokens of the next window), about (utf8: language code, a space, duration in seconds), attempt
// [1] i32: which of WhisperOptions::temperatures this window is to be tried at next, with no segments yet; -1 where it
// is done; words i32: the tokens that are to be aligned before there are segments, with word times; else none. The run
// after that has the inputs window, language, first_frames, token_probs, speech, length.
std::unique_ptr<decl::HostStage> make_segment_stage(std::shared_ptr<const WhisperConfig> config,
                                                    const decl::RequestParams& params);

}  // namespace mstar::models
