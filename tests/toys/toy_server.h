// A real deployment of one toy for the tests: the runtime, the HTTP server in front of it, and clients of both.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mstar/server/http_server.h"
#include "mstar/server/test_client.h"
#include "runtime.h"

namespace mstar::toys {

// What a request got, by either way.
struct Answer {
  int status = 200;     // of HTTP
  std::string message;  // of an error, also of one that came after the answer had begun
  std::string param;    // the field at fault
  std::vector<std::pair<std::string, std::string>> chunks;  // modality, bytes
  std::vector<nlohmann::json> metadata;                     // of each chunk
  std::int64_t completion_tokens = -1;                      // not in a streamed answer
  bool ok() const { return status == 200 && message.empty(); }
  // All bytes of one modality, in order.
  std::string bytes(const std::string& modality) const;
};

// A request to the runtime itself. Thread-safe.
class Ticket final : public EventSink {
 public:
  void on_event(RequestEvent event) override;
  // Waits for the terminal event; fails the test after 60 s.
  Answer wait();
  void wait_for_chunks(std::size_t count);
  RequestId id;
  std::optional<Finished> finished;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Answer answer_;
  bool done_ = false;
};

class ToyServer {
 public:
  using Groups = std::vector<apps::NodeGroupConfig>;
  explicit ToyServer(const std::string& model, Groups groups = {}, int max_concurrent_requests = 16);

  // POST /generate with a JSON body.
  Answer ask(nlohmann::json body) const;
  server::TestAnswer post(const std::string& path, const std::string& type, const std::string& body) const;
  // Straight to the runtime; `fields` as in a JSON body.
  std::shared_ptr<Ticket> submit(const std::string& text, const nlohmann::json& fields,
                                 std::vector<decl::Modality> wanted);
  std::string metrics() const;
  // Steps and rows that the component ran.
  std::pair<double, double> steps_and_rows(const std::string& component) const;
  // All pages, slots and rows came back within 10 s, and no request is left.
  testing::AssertionResult pools_are_empty() const;
  std::uint16_t port() const { return http_->port(); }
  conductor::Conductor& frontend() { return runtime_->conductor(); }

 private:
  std::string model_;
  std::unique_ptr<apps::Runtime> runtime_;
  std::unique_ptr<server::HttpServer> http_;
};

Answer read_stream(const server::TestAnswer& http);

// Asks each body once alone and then all at once from as many threads: the answers must not differ in a bit. Returns
// the lone answers.
std::vector<Answer> alone_and_together(const ToyServer& server, const std::vector<nlohmann::json>& bodies);

}  // namespace mstar::toys
