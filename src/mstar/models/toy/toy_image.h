// toy-image: a denoiser with guidance that paints 16 x 16 pictures. No checkpoint; seeded weights; CPU only.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

// Fields: text (64 letters at most), n 1..4 pictures (1), num_steps 1..50 (8), guidance 0..20 (3), seed. Output: PNG
// images.
Result<decl::Decl> declare_toy_image(const ModelSource& source);

}  // namespace mstar::models
