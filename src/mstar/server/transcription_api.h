// POST /v1/audio/transcriptions and /v1/audio/translations.
#pragma once

#include "mstar/base/result.h"
#include "mstar/server/answer.h"
#include "mstar/server/form.h"

namespace mstar::server {

// Checks the fields that the server itself reads: file, model, response_format, stream, timestamp_granularities, and
// the kinds of temperature, seed, max_tokens, language and prompt. All fields but file, model and stream travel on in
// ApiRequest::fields; the prompt is also ApiRequest::text. Errors: invalid_request with the field's name.
Result<Call> make_transcription(Form form, bool translate);

}  // namespace mstar::server
