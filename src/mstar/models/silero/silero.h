// Voice activity as a model of its own: a recording in, where there is speech in it out.
#pragma once

#include "mstar/models/model.h"

namespace mstar::models {

bool silero_recognises(const ModelSource& source);
// One host component; route /generate with one audio file. The answer is text, one JSON object
// {"segments":[{"start":s,"end":s},…],"duration":s}. Fields: those of read_speech_options without a prefix.
Result<decl::Decl> declare_silero(const ModelSource& source);

}  // namespace mstar::models
