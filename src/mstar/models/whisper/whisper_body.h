// Whisper's device components: mel features, encoder, the writing of its cross keys and values, decoder.
#pragma once

#include <string_view>

#include "mstar/decl/decl.h"
#include "mstar/models/whisper/whisper_config.h"

namespace mstar::models {

// Ports and resources that the bodies read by reference; filled by declare_whisper.
struct WhisperRefs {
  decl::PortRef pcm, window, mel_max, mel, states, context, prompt, token, first, score, first_score, no_speech,
      language_probs, text, frames, first_frames, token_probs;
  decl::ResourceRef self_kv, cross_kv, sampler;
  std::shared_ptr<const WhisperConfig> config;  // owners: the declaration's closures and the bodies
};

// Windows of one step of a GPU's encoder: more are no faster together, and whoever decodes waits for them.
inline constexpr int kEncoderRows = 8;

// pcm [samples] f32 of the window padded for its mel frames, window i32 (kWindow*), mel_max [1] f32 (NaN: the window's
// own)
// -> mel [num_mels, window frames], normalised, 0 past the content.
decl::BuildBody build_whisper_features(const WhisperRefs& refs);
// mel -> states [positions, dim].
decl::BuildBody build_whisper_encoder(const WhisperRefs& refs);
// states -> the request's slot of cross_kv; context [1] i32 tells that it is written.
decl::BuildBody build_whisper_cross(const WhisperRefs& refs);
// prompt [n] i32 -> first [1], first_score [1], no_speech [1] (or language_probs [languages] in walk `detect`);
// token [1] i32 -> token [1], score [1];
// text [n] i32, frames [n] i32 (the window's positions, at each token) -> first_frames [n - start - 1] i32, token_probs
// [n - start - 1] f32 in walk `align`: of each of its words' tokens and the end, where in the window it begins and how
// likely it was.
decl::BuildBody build_whisper_decoder(const WhisperRefs& refs);

// The decoder's captured part of steps that align texts.
inline constexpr std::string_view kTextRegion = "text";

// Flag of walks that draw tokens: their temperature in millionths.
inline constexpr const char* kTemperatureFlag = "temperature_micros";

// Fields of the `window` port, i32.
enum WindowField { kWindowSeek = 0, kWindowSegmentFrames, kWindowMelFrames, kWindowContentFrames, kWindowFields };

}  // namespace mstar::models
