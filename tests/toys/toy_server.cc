#include "toy_server.h"

#include <algorithm>
#include <cstdlib>

#include "mstar/base/log.h"
#include "mstar/server/base64.h"

namespace mstar::toys {

using nlohmann::json;

std::string Answer::bytes(const std::string& modality) const {
  std::string out;
  for (const auto& [name, each] : chunks)
    if (name == modality) out += each;
  return out;
}

void Ticket::on_event(RequestEvent event) {
  std::lock_guard lock(mutex_);
  if (auto* chunk = std::get_if<decl::Chunk>(&event)) {
    answer_.chunks.emplace_back(decl::modality_name(chunk->modality), chunk->value.text());
  } else if (auto* failed = std::get_if<Failed>(&event)) {
    answer_.message = failed->error.message;
    answer_.param = failed->error.field;
    done_ = true;
  } else {
    finished = std::get<Finished>(std::move(event));
    answer_.completion_tokens = finished->usage.completion_tokens;
    done_ = true;
  }
  changed_.notify_all();
}

Answer Ticket::wait() {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_; })) << "no terminal event";
  return answer_;
}

void Ticket::wait_for_chunks(std::size_t count) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(
      changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_ || answer_.chunks.size() >= count; }));
}

ToyServer::ToyServer(const std::string& model, Groups groups, int max_concurrent_requests) : model_(model) {
  set_log_level("off");
  apps::RuntimeConfig config;
  config.models.push_back({.model = model, .node_groups = std::move(groups)});
  config.num_threads = 2;
  config.max_concurrent_requests = max_concurrent_requests;
  config.stay_awake_us = 300;
  auto runtime = apps::Runtime::build(std::move(config));
  if (!runtime) ADD_FAILURE() << runtime.error().message;
  if (!runtime) std::abort();
  runtime_ = std::move(*runtime);
  server::ServerConfig served;
  served.port = 0;
  served.stays_awake = std::chrono::microseconds(300);
  auto http = server::HttpServer::start(served, runtime_->frontend());
  if (!http) ADD_FAILURE() << http.error().message;
  if (!http) std::abort();
  http_ = std::move(*http);
}

namespace {

std::string decoded(const json& data) { return *server::base64_decode(data.get_ref<const std::string&>()); }

void add_chunk(Answer& answer, const std::string& modality, const json& chunk) {
  answer.chunks.emplace_back(modality, decoded(chunk.at("data")));
  answer.metadata.push_back(chunk.at("metadata"));
}

Answer read_error(const server::TestAnswer& http) {
  Answer out{.status = http.status};
  const json error = json::parse(http.body).at("error");
  out.message = error.at("message").get<std::string>();
  if (error.at("param").is_string()) out.param = error.at("param").get<std::string>();
  return out;
}

}  // namespace

Answer read_stream(const server::TestAnswer& http) {
  if (http.status != 200) return read_error(http);
  Answer out;
  for (std::size_t at = 0; at < http.body.size();) {
    const std::size_t end = http.body.find('\n', at);
    const json line = json::parse(http.body.substr(at, end - at));
    const auto modality = line.at("modality").get<std::string>();
    if (modality == "error") {
      out.message = line.at("metadata").at("message").get<std::string>();
    } else {
      add_chunk(out, modality, line);
    }
    at = end + 1;
  }
  return out;
}

Answer ToyServer::ask(json body) const {
  const server::TestAnswer http = post("/generate", "application/json", body.dump());
  if (http.status != 200) return read_error(http);
  if (body.value("streaming", true)) return read_stream(http);
  Answer out;
  const json whole = json::parse(http.body);
  for (const auto& [modality, list] : whole.at("outputs").items())
    for (const json& chunk : list) add_chunk(out, modality, chunk);
  out.completion_tokens = whole.at("usage").at("completion_tokens").get<std::int64_t>();
  return out;
}

server::TestAnswer ToyServer::post(const std::string& path, const std::string& type, const std::string& body) const {
  return server::ask(port(), server::post(path, type, body));
}

std::shared_ptr<Ticket> ToyServer::submit(const std::string& text, const json& fields,
                                          std::vector<decl::Modality> wanted) {
  decl::ApiRequest request{.model = model_, .text = text, .output_modalities = std::move(wanted)};
  for (const auto& [name, value] : fields.items()) {
    if (value.is_boolean()) {
      request.fields.set(name, value.get<bool>());
    } else if (value.is_number_integer()) {
      request.fields.set(name, value.get<std::int64_t>());
    } else if (value.is_number()) {
      request.fields.set(name, value.get<double>());
    } else if (value.is_array()) {
      request.fields.set(name, value.get<std::vector<double>>());
    } else {
      request.fields.set(name, value.get<std::string>());
    }
  }
  auto ticket = std::make_shared<Ticket>();
  auto id = runtime_->frontend().submit(std::move(request), ticket);
  EXPECT_TRUE(id) << id.error().message;
  if (id) ticket->id = *id;
  return ticket;
}

std::string ToyServer::metrics() const { return server::ask(port(), server::get("/metrics")).body; }

namespace {

// Sum of a metric's values over the lines whose labels contain `label`.
double sum_of(const std::string& text, const std::string& name, const std::string& label) {
  double sum = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const std::size_t space = line.rfind(' ');
    if (line.rfind(name, 0) == 0 && (line[name.size()] == '{' || line[name.size()] == ' ') &&
        line.find(label) != line.npos)
      sum += std::strtod(line.c_str() + space, nullptr);
  }
  return sum;
}

}  // namespace

std::pair<double, double> ToyServer::steps_and_rows(const std::string& component) const {
  const std::string text = metrics(), label = "component=\"" + component + "\"";
  return {sum_of(text, "mstar_steps_total", label), sum_of(text, "mstar_step_rows_total", label)};
}

testing::AssertionResult ToyServer::pools_are_empty() const {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text = metrics();
    if (sum_of(text, "mstar_resource_used", "") == 0 && sum_of(text, "mstar_requests_running", "") == 0 &&
        sum_of(text, "mstar_requests_waiting", "") == 0)
      return testing::AssertionSuccess();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return testing::AssertionFailure() << text;
}

std::vector<Answer> alone_and_together(const ToyServer& server, const std::vector<json>& bodies) {
  std::vector<Answer> alone, together(bodies.size());
  for (const json& body : bodies) alone.push_back(server.ask(body));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) threads.emplace_back([&, i] { together[i] = server.ask(bodies[i]); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    EXPECT_TRUE(alone[i].ok() && together[i].ok()) << bodies[i] << alone[i].message << together[i].message;
    EXPECT_EQ(alone[i].completion_tokens, together[i].completion_tokens) << bodies[i];
    for (const char* modality : {"text", "audio", "image", "video", "video_frame"})
      EXPECT_TRUE(alone[i].bytes(modality) == together[i].bytes(modality)) << bodies[i] << " differs in " << modality;
  }
  return alone;
}

}  // namespace mstar::toys
