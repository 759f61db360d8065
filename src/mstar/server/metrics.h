// The server's own counters, by prometheus-cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mstar::server {

// Thread: any.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  // `route` is a path of the route table or "other".
  void request_done(std::string_view route, int status, double seconds);
  void request_aborted(std::string_view reason);  // "client_gone", "slow_reader", "timeout", "shutdown"
  void connection_opened();
  void connection_closed();
  void connection_refused();
  void calls_in_flight(int change);
  void received(std::size_t bytes);
  void sent(std::size_t bytes);
  // Prometheus text exposition.
  std::string text() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace mstar::server
