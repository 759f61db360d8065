#include "mstar/server/server_core.h"

namespace mstar::server {

namespace {
// Connections over the limit that may be told so at a time; more are dropped without a word.
constexpr std::size_t kMaxTurnedAway = 64;
}  // namespace

ServerCore::Admission ServerCore::add(const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mutex_);
  if (refusing_ || connections_.size() >= config.max_connections + kMaxTurnedAway) return Admission::refused;
  const bool over = connections_.size() >= config.max_connections;
  connections_.emplace(connection.get(), connection);
  return over ? Admission::over_limit : Admission::accepted;
}

void ServerCore::remove(Connection* connection) {
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
}

void ServerCore::set_busy(bool busy) {
  std::lock_guard lock(mutex_);
  num_busy_ += busy ? 1 : -1;
  if (num_busy_ == 0) idle_.notify_all();
}

bool ServerCore::wait_until_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return num_busy_ == 0; });
}

std::vector<std::shared_ptr<Connection>> ServerCore::connections() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> out;
  for (const auto& [key, weak] : connections_)
    if (auto held = weak.lock()) out.push_back(std::move(held));
  return out;
}

void ServerCore::refuse_all() {
  std::lock_guard lock(mutex_);
  refusing_ = true;
}

}  // namespace mstar::server
