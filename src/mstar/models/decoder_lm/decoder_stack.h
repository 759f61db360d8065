// The layers of a dense decoder language model.
#pragma once

#include <memory>

#include "mstar/models/decoder_lm/decoder_config.h"

namespace mstar::models {

// `kv` has a layer for each of the model's.
Result<std::unique_ptr<DecoderStack>> build_dense_stack(const DecoderConfig& config, decl::ResourceRef kv,
                                                        const nn::LoadContext& load, engine::BuildContext& build);

}  // namespace mstar::models
