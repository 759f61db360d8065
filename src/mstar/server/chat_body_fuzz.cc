// Any bytes as the body of a chat or a completion: refused with a reason, or a request whose parts are well formed and
// whose answer is. The first byte chooses the route.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mstar/server/chat_api.h"
#include "mstar/server/completions_api.h"
#include "mstar/server/endpoints.h"
#include "mstar/server/json_text.h"
#include "mstar/server/no_runtime_fuzz.h"

namespace {

using namespace mstar;
using namespace mstar::server;

// Each event of a stream is one line of JSON, or the end.
void check_stream(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find("\n\n");
    require(end != bytes.npos && bytes.starts_with("data: "));
    const std::string_view event = bytes.substr(6, end - 6);
    require(event == "[DONE]" || nlohmann::json::accept(event));
    bytes.remove_prefix(end + 2);
  }
}

void check_request(const decl::ApiRequest& request) {
  require(!request.model.empty() && is_utf8(request.model) && is_utf8(request.text));
  const bool is_chat = request.route == decl::Route::chat_completions;
  require(is_chat == !request.messages_json.empty());
  if (is_chat) require(nlohmann::json::parse(request.messages_json).size() > 0);
  if (!request.tools_json.empty()) require(nlohmann::json::parse(request.tools_json).size() > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 20'000) return 0;
  static const NoRuntime kFrontend;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto call = data[0] & 1 ? make_completions(body, kFrontend, "id") : make_chat(body, "id");
  if (!call) {
    require(call.error().code == Code::invalid_request && !call.error().message.empty());
    return 0;
  }
  const std::size_t num = num_choices(*call);
  require(num >= 1 && num <= 1024);
  decl::Chunk chunk{decl::Modality::text, "utf8", HostValue::utf8(body), {}};
  chunk.metadata.set("logprobs", std::string(R"([{"token":"a","bytes":[97],"logprob":-1,"top_logprobs":[]}])"));
  std::string out;
  for (const decl::ApiRequest& request : call->requests) check_request(request);
  for (std::size_t i = 0; i < std::min<std::size_t>(num, 4); ++i) require(call->answer->on_chunk(i, chunk, out).ok());
  for (std::size_t i = 0; i < num; ++i) require(call->answer->on_finished(i, Finished{}, out).ok());
  if (call->answer->streams()) {
    check_stream(out);
  } else {
    require(nlohmann::json::accept(out));
  }
  return 0;
}
