// Everything between a socket's bytes and the runtime, without sockets: framing, routing, forms, JSON, answers. Any
// bytes, cut in two ways, must give the same requests.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mstar/server/endpoints.h"
#include "mstar/server/no_runtime_fuzz.h"
#include "mstar/server/request_reader.h"
#include "mstar/server/response_head.h"

namespace {

using namespace mstar;
using namespace mstar::server;

std::string without_times(std::string answer) {
  constexpr std::string_view kName = "\"created\":";
  for (std::size_t at = 0; (at = answer.find(kName, at)) != std::string::npos;) {
    at += kName.size();
    const std::size_t end = answer.find_first_not_of("0123456789", at);
    answer.erase(at, end == std::string::npos ? end : end - at);
  }
  return answer;
}

// The answer of one request, as the connection would write it; without the parts that differ from run to run.
std::string answer(RequestReader& reader, const Metrics& metrics) {
  static const NoRuntime kFrontend;
  if (reader.error()) {
    const std::string body = error_body(*reader.error());
    require(nlohmann::json::accept(body));
    return std::to_string(reader.error()->status) + body;
  }
  if (reader.head().method == "OPTIONS") return "204";
  const Endpoint endpoint = reader.match().route->endpoint;
  if (!is_call(endpoint)) {
    const Reply reply = answer_at_once(reader.match(), reader.take_form(), kFrontend, metrics);
    return std::to_string(reply.status) + (endpoint == Endpoint::metrics ? "" : reply.body);
  }
  std::string id = "id";
  auto call = make_call(endpoint, reader.take_form(), kFrontend, id);
  if (!call) return error_body(to_http(call.error(), Stage::body));
  require(num_choices(*call) > 0);
  const decl::ApiRequest& request = call->requests.back();
  require(!request.model.empty());
  for (const decl::Media& each : request.media) require(each.bytes.size_bytes() > 0);
  // The request's own text goes back through the writers, as a model's would.
  std::string out(call->answer->content_type());
  for (const char* format : {"utf8", "segment"}) {
    decl::Chunk chunk{decl::Modality::text, format, HostValue::utf8(request.text), request.fields};
    if (!call->answer->on_chunk(0, chunk, out)) call->answer->on_failed(http_error(500, "bad chunk"), out);
  }
  Finished finished;
  finished.metadata = request.fields;
  for (std::size_t i = 0; i < num_choices(*call); ++i)
    if (!call->answer->on_finished(i, finished, out)) out += "bad end";
  return id + without_times(std::move(out));
}

std::string run(std::string_view bytes, std::size_t piece, BodyBudget& budget) {
  static const Metrics kMetrics;
  ServerConfig config;
  config.body_limit_bytes = 4096;
  config.json_limit_bytes = 2048;
  config.header_limit_bytes = 1024;
  RequestReader reader(config, budget);
  std::string out;
  for (;;) {
    const RequestReader::Step step = reader.advance();
    if (step == RequestReader::Step::need_more) {
      if (bytes.empty()) return out;
      const auto room = reader.room();
      require(!room.empty());
      const std::size_t n = std::min({piece, bytes.size(), room.size()});
      std::copy_n(bytes.data(), n, room.data());
      reader.commit(n);
      bytes.remove_prefix(n);
    } else if (step != RequestReader::Step::head_done) {
      require(step != RequestReader::Step::failed || nlohmann::json::accept(error_body(reader.error().value())));
      if (reader.head_parsed()) {
        const std::string head = response_head({}, reader.head(), {"*"});
        require(head.find("\r\n\r\n") == head.size() - 4);
      }
      if (step == RequestReader::Step::failed) return out + "failed";
      out += answer(reader, kMetrics) + "\n";
      reader.next();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 20'000) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  BodyBudget budget(1 << 20);
  const std::string whole = run(bytes, size, budget);
  const std::string cut = run(bytes, 1 + data[0] % 100, budget);
  // The parser may wait for the end of a header before it looks at what it could refuse at once.
  require(whole.starts_with(cut) || cut.starts_with(whole));
  require(budget.take(1 << 20));
  return 0;
}
