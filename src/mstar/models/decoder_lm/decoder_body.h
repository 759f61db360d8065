// The device component of a dense decoder language model.
#pragma once

#include "mstar/decl/decl.h"
#include "mstar/models/decoder_lm/decoder_config.h"

namespace mstar::models {

// Ports and resources that the body reads by reference; filled by declare_decoder_lm.
struct DecoderRefs {
  decl::PortRef prompt, token, logprobs;
  decl::ResourceRef kv, sampler;
  std::shared_ptr<const DecoderConfig> config;  // owners: the declaration's closures and the body
};

// prompt [n] i32 or token [1] i32 -> token [1] i32, logprobs [1 + n, 2] f32 where wanted (see TextModel).
decl::BuildBody build_decoder_lm(const DecoderRefs& refs);

}  // namespace mstar::models
