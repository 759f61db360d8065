#include "step_groups.h"

#include <algorithm>
#include <utility>

#include "mstar/base/log.h"

namespace mstar::apps {
namespace {

constexpr std::chrono::minutes kSteady{1};  // a life of this length ends a row of ends

int rank_of(WorkerId worker) { return static_cast<int>(worker.value) - 1; }
WorkerId worker_of(int rank) { return WorkerId(static_cast<std::uint32_t>(rank) + 1); }

}  // namespace

StepGroups::StepGroups(StepGroupsOptions options, wire::Mesh& mesh) : options_(std::move(options)), mesh_(mesh) {}

StepGroups::~StepGroups() { stop(); }

std::string StepGroups::name_of(const Group& group) {
  std::string out = "ranks ";
  for (std::size_t i = 0; i < group.ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(group.ranks[i]);
  return out;
}

StepGroups::Group* StepGroups::find(int rank) const {
  for (const auto& each : groups_)
    if (std::find(each->ranks.begin(), each->ranks.end(), rank) != each->ranks.end()) return each.get();
  return nullptr;
}

Status StepGroups::add(const std::vector<int>& ranks) {
  auto made = std::make_unique<Group>();
  made->ranks = ranks;
  MSTAR_TRY_ASSIGN(RankMesh mesh, options_.mesh(ranks));
  made->group = std::make_shared<worker::StepGroup>(static_cast<int>(ranks.size()), std::move(mesh));
  groups_.push_back(std::move(made));
  return ok_status();
}

bool StepGroups::follows(int rank) const {
  const Group* const group = find(rank);
  return group && group->ranks.front() != rank;
}

std::shared_ptr<worker::StepGroup> StepGroups::led_by(int rank) const {
  const Group* const group = find(rank);
  if (!group || group->ranks.front() != rank) return nullptr;
  const std::lock_guard lock(mutex_);
  return group->group;
}

void StepGroups::set_follower(int rank, worker::StepFollowerOptions options) {
  Group& group = *find(rank);
  options.rank = static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), rank) - group.ranks.begin());
  group.follower_options.emplace(rank, std::move(options));
}

void StepGroups::set_leader(int rank, worker::Worker& leader) { find(rank)->leader = &leader; }

void StepGroups::make_followers(Group& group) {
  std::map<int, std::shared_ptr<worker::StepFollower>> made;
  for (auto& [rank, options] : group.follower_options) {
    options.group = group.group;
    made[rank] = std::make_shared<worker::StepFollower>(options, mesh_);
  }
  const std::lock_guard lock(mutex_);
  group.followers = std::move(made);
}

void StepGroups::start_followers() {
  for (const auto& each : groups_) {
    make_followers(*each);
    for (auto& follower : each->followers) follower.second->start();
  }
}

Status StepGroups::wait_loaded() {
  Status out;
  for (const auto& each : groups_) {
    for (auto& follower : each->followers)
      if (Status loaded = follower.second->wait_loaded(); out.ok() && !loaded) out = std::move(loaded);
  }
  if (out && !groups_.empty()) supervisor_ = std::thread([this] { supervise(); });
  return out;
}

void StepGroups::end_all(const std::string& reason) {
  for (const auto& each : groups_) each->group->end(reason);
}

void StepGroups::stop_supervisor() {
  if (!supervisor_.joinable()) return;
  events_.push(Stop{});
  supervisor_.join();
}

void StepGroups::stop() {
  stop_supervisor();
  for (const auto& each : groups_)
    for (auto& follower : each->followers) follower.second->stop();
}

void StepGroups::on_failed(WorkerId leader) {
  Group* const group = find(rank_of(leader));
  if (group && worker_of(group->ranks.front()) == leader) events_.push(Failed{group});
}

void StepGroups::on_ready(WorkerId leader) {
  Group* const group = find(rank_of(leader));
  if (!group || worker_of(group->ranks.front()) != leader) return;
  const std::lock_guard lock(mutex_);
  group->ready_at = Clock::now();
}

bool StepGroups::on_asked(WorkerId worker) {
  Group* const group = find(rank_of(worker));
  if (!group) return false;
  const std::lock_guard lock(mutex_);
  if (group->standing == Standing::runs) return false;
  events_.push(Asked{group});
  return true;
}

std::optional<wire::WorkerStats> StepGroups::stats(WorkerId worker) const {
  const Group* const group = find(rank_of(worker));
  std::shared_ptr<worker::StepFollower> follower;
  if (group) {
    const std::lock_guard lock(mutex_);
    if (const auto found = group->followers.find(rank_of(worker)); found != group->followers.end())
      follower = found->second;
  }
  if (!follower) return std::nullopt;
  return follower->stats();
}

void StepGroups::supervise() {
  for (;;) {
    auto next = Clock::now() + std::chrono::hours(1);
    for (const auto& each : groups_) next = std::min(next, each->due.value_or(next));
    const auto wait = std::max<Clock::duration>(next - Clock::now(), Clock::duration(0));
    for (const Event& event : events_.wait_all(std::chrono::duration_cast<std::chrono::microseconds>(wait))) {
      if (std::holds_alternative<Stop>(event)) return;
      if (const auto* failed = std::get_if<Failed>(&event))
        if (const Status reason = failed->group->group->failure(); !reason) on_end(*failed->group, reason);
      if (const auto* asked = std::get_if<Asked>(&event)) {
        const std::lock_guard lock(mutex_);
        asked->group->num_ends = 0;
        if (asked->group->standing == Standing::ended || asked->group->standing == Standing::given_up)
          asked->group->due = Clock::now();
      }
    }
    for (const auto& each : groups_)
      if (each->due && Clock::now() >= *each->due) begin(*each);
  }
}

// A group that runs has ended, or could not begin.
void StepGroups::on_end(Group& group, const Status& reason) {
  std::unique_lock lock(mutex_);
  if (group.standing == Standing::ended || group.standing == Standing::given_up) return;
  // Of its life in service: to load may take longer than that.
  if (group.ready_at && Clock::now() - *group.ready_at > kSteady) group.num_ends = 0;
  group.ready_at.reset();
  ++group.num_ends;
  if (group.num_ends < options_.most_ends) {
    auto delay = options_.first_delay;
    for (int i = 1; i < group.num_ends; ++i) delay *= 2;
    group.standing = Standing::ended;
    group.due = Clock::now() + delay;
    lock.unlock();
    log_warn("{}, which work in step, begin again in {:g} s", name_of(group),
             std::chrono::duration<double>(delay).count());
    return;
  }
  group.standing = Standing::given_up;
  const int leader = group.ranks.front();
  const std::string text =
      fmt::format("{} work in step, which ended {} times in a row{}; POST /debug/workers/{}/resume begins it again",
                  name_of(group), group.num_ends, ", at last because: " + reason.error().message, leader);
  lock.unlock();
  log_error("{}", text);
  options_.report({worker_of(leader), unavailable(text)});
}

void StepGroups::begin(Group& group) {
  group.due.reset();
  log_info("{}, which work in step, begin again", name_of(group));
  for (auto& follower : group.followers) follower.second->stop();
  group.retired.reset();
  if (const Status begun = try_begin(group); !begun) {
    log_error("{}: {}", name_of(group), begun.error().message);
    options_.report({worker_of(group.ranks.front()), begun.error()});
    on_end(group, begun);
  }
}

Status StepGroups::try_begin(Group& group) {
  {
    // The weights and pools of the old ones go before those of the new ones come.
    std::map<int, std::shared_ptr<worker::StepFollower>> old;
    const std::lock_guard lock(mutex_);
    std::swap(old, group.followers);
    group.standing = Standing::begins;
  }
  MSTAR_TRY_ASSIGN(RankMesh mesh, options_.mesh(group.ranks));
  auto made = std::make_shared<worker::StepGroup>(static_cast<int>(group.ranks.size()), std::move(mesh));
  {
    const std::lock_guard lock(mutex_);
    group.retired = std::exchange(group.group, made);
  }
  make_followers(group);
  group.leader->set_next_group(made);
  {
    // From here on the leader itself is asked for.
    const std::lock_guard lock(mutex_);
    group.standing = Standing::runs;
  }
  group.leader->send(wire::Load{});
  for (auto& follower : group.followers) follower.second->start();
  return ok_status();
}

}  // namespace mstar::apps
