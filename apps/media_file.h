// Files of media between the command line and the runtime.
#pragma once

#include <string>

#include "mstar/base/result.h"
#include "mstar/decl/request.h"

namespace mstar::apps {

// "speech.wav", or "audio:clip.mp4" to say what the file is taken for; else its extension tells. "-" is standard input.
// Errors: invalid_request for a kind that nobody can tell, unavailable for a file that cannot be read.
Result<decl::Media> read_media(const std::string& argument);

// "answer-3.png": the name of the n-th chunk of media of an answer.
std::string chunk_file_name(const decl::Chunk& chunk, int number);

}  // namespace mstar::apps
