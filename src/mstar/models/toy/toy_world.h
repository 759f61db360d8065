// toy-world: a world whose state moves by actions, seen as 4 x 4 frames. No checkpoint; seeded weights; CPU only.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

// Fields: control "list" (the actions come with the request, in `actions`: x0, y0, x1, y1, ..., 64 pairs at most) or
// "client" (they come to the input `action` while it runs), stream_rollout (frames as they are made; always so with
// "client"), seed. Output: f32 frames, as one video or one by one. A rollout ends with its actions, or with the frame
// in which the state leaves its bounds (finish "stop").
Result<decl::Decl> declare_toy_world(const ModelSource& source);

}  // namespace mstar::models
