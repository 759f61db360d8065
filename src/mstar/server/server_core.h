// What the connections of one server share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mstar/conductor/frontend.h"
#include "mstar/server/metrics.h"
#include "mstar/server/request_reader.h"
#include "mstar/server/server_config.h"

namespace mstar::server {

class Connection;

// Requests in flight by the id that their client knows. Two at once under one id: the first one is found. Thread: any.
class CallTable {
 public:
  void add(const std::string& id, RequestId request) {
    std::lock_guard lock(mutex_);
    calls_.emplace(id, request);
  }
  void remove(const std::string& id, RequestId request) {
    std::lock_guard lock(mutex_);
    const auto it = calls_.find(id);
    if (it != calls_.end() && it->second == request) calls_.erase(it);
  }
  std::optional<RequestId> find(std::string_view id) const {
    std::lock_guard lock(mutex_);
    const auto it = calls_.find(id);
    return it == calls_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, RequestId, std::less<>> calls_;
};

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
  CallTable calls;
  std::atomic<bool> draining{false};
  // Runs what would keep the threads of the sockets too long. Set once, before the first connection.
  std::function<void(std::function<void()>)> in_background;

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections_;
  int num_busy_ = 0;
  bool refusing_ = false;
};

}  // namespace mstar::server
