// The device component of decoder language models.
#pragma once

#include <string_view>

#include "mstar/models/text_decoder.h"

namespace mstar::models {

// The part of its forward that may be captured by itself (decl::PiecewiseRegion): from ids to logits.
inline constexpr std::string_view kTrunkRegion = "trunk";

// Ports and resources that the body reads by reference.
struct TextDecoderRefs {
  decl::PortRef prompt, token, logprobs;
  decl::ResourceRef kv, sampler;
  std::shared_ptr<const TextDecoderConfig> config;  // owners: the declaration's closures and the body
};

// prompt [n] i32 or token [1] i32 -> token [1] i32, logprobs [1 + n, 2] f32 where wanted (see TextModel).
decl::BuildBody build_text_decoder(
    const TextDecoderRefs& refs,
    std::function<Result<std::unique_ptr<DecoderStack>>(const nn::LoadContext&, engine::BuildContext&)> build_stack);

}  // namespace mstar::models
