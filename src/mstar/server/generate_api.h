// POST /generate, the native route.
#pragma once

#include <string>

#include "mstar/base/result.h"
#include "mstar/server/answer.h"
#include "mstar/server/form.h"

namespace mstar::server {

// Fields: text, files[], model, input_modalities, output_modalities, streaming, model_kwargs, request_id; see
// docs/api.md. `default_model` stands in for a missing model. A request_id given in the form replaces `request_id`.
// Errors: invalid_request with the field's name.
Result<Call> make_generate(Form form, const std::string& default_model, std::string& request_id);

}  // namespace mstar::server
