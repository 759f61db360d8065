// What the connections of one server share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/server/metrics.h"
#include "mstar/server/request_reader.h"
#include "mstar/server/server_config.h"

namespace mstar::server {

class Connection;

// Thread: any. `frontend` outlives the server, but not what may be left of its connections: a closed one never calls
// it.
class ServerCore {
 public:
  ServerCore(const ServerConfig& c, Frontend& f) : config(c), frontend(f), budget(c.max_buffered_bytes) {}

  enum class Admission { accepted, over_limit, refused };
  // over_limit: registered, and to be told that there are too many; refused: neither.
  Admission add(const std::shared_ptr<Connection>& connection);
  void remove(Connection* connection);
  void set_busy(bool busy);  // one connection began or ended a request
  bool wait_until_idle(std::chrono::milliseconds timeout);
  std::vector<std::shared_ptr<Connection>> connections();
  void refuse_all();  // add() refuses from now on

  const ServerConfig config;
  Frontend& frontend;
  Metrics metrics;
  BodyBudget budget;
  std::atomic<bool> draining{false};

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections_;
  int num_busy_ = 0;
  bool refusing_ = false;
};

}  // namespace mstar::server
