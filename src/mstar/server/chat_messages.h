// OpenAI's messages and tools, checked and brought into the shape that chat templates expect.
#pragma once

#include "mstar/decl/request.h"
#include "mstar/server/openai_body.h"

namespace mstar::server {

// "messages" -> request.messages_json and request.media. Each message keeps role, content, name, tool_calls,
// tool_call_id and reasoning_content. A developer's message is a system's. Text parts become one string, joined by line
// breaks; beside media they stay parts, and each medium leaves {"type":"image"|"audio"|"video"} in its place. Arguments
// of tool calls that are the text of a JSON object become that object. Faults have the field "messages".
Status read_messages(const OrderedJson& body, decl::ApiRequest& request);

// "tools" -> request.tools_json, unless "tool_choice" is "none". Faults have the field "tools" or "tool_choice".
Status read_tools(const OrderedJson& body, decl::ApiRequest& request);

}  // namespace mstar::server
