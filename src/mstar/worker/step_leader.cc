#include "mstar/worker/step_leader.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "mstar/base/check.h"

namespace mstar::worker {

using engine::Engine;
using engine::RowInputs;
using engine::RowResult;

void StepLeader::add_model(std::uint32_t model, const decl::Decl& decl,
                           const std::vector<decl::ComponentRef>& components, const engine::ResourceSet& resources) {
  models_.insert(model);
  state_.watch(resources, resources_of(decl, components));
}

// The state is as it is before the leader does what the entry says.
LogEntry StepLeader::next_entry() {
  LogEntry out{.number = num_entries_++, .action = {}};
  if (out.number % group_->entries_per_state() == 0) out.state = state_.value();
  return out;
}

void StepLeader::write(LogAction action) {
  LogEntry entry = next_entry();
  entry.action = std::move(action);
  group_->log(entry);
}

Status StepLeader::add_request(std::uint32_t model, RequestId request,
                               const std::shared_ptr<const decl::RequestParams>& params,
                               engine::ResourceSet& resources) {
  MSTAR_TRY(group_->failure());
  LogEntry entry = next_entry();
  Status added = resources.add_request(request, *params);
  entry.action = LogAdd{model, request, params, added.ok()};
  group_->log(entry);
  state_.note(added.ok() ? 1 : 0);
  return added;
}

void StepLeader::remove_request(std::uint32_t model, RequestId request, engine::ResourceSet& resources) {
  write(LogRemove{model, request});
  resources.remove_request(request);
  release_values();
}

// A value that the device is still to make elsewhere can be read in the order of that device's stream alone.
bool StepLeader::waits_for_others(const RowInputs& row) const {
  const auto is_foreign = [&](const Value& value) {
    const auto found = named_.find(value.device.get());
    return value.device && (found == named_.end() || found->second.value.lock() != value.device);
  };
  return row.ahead && std::any_of(row.ports.begin(), row.ports.end(), [&](const Values& values) {
           return std::any_of(values.begin(), values.end(), is_foreign);
         });
}

LogPrepare::Row StepLeader::row_for_others(const RowInputs& row) const {
  LogPrepare::Row out{.inputs = row, .own = {}};
  for (std::size_t p = 0; p < row.ports.size(); ++p)
    for (std::size_t i = 0; i < row.ports[p].size(); ++i) {
      const Value& value = row.ports[p][i];
      const auto found = named_.find(value.device.get());
      // Another buffer may lie where one of ours was.
      if (!value.device || found == named_.end() || found->second.value.lock() != value.device) continue;
      out.own.push_back(
          {static_cast<std::uint16_t>(p), static_cast<std::uint16_t>(i), found->second.name, !value.host.is_signal()});
      out.inputs.ports[p][i] = {};
    }
  return out;
}

void StepLeader::name_values(std::uint64_t step, const std::vector<RowResult>& results) {
  for (const RowResult& result : results)
    for (std::size_t o = 0; o < result.outputs.size(); ++o)
      for (std::size_t i = 0; i < result.outputs[o].size(); ++i)
        if (const auto& device = result.outputs[o][i].device) {
          Named& named = named_[device.get()];
          // Promised values are named again when their step ends, by the same name.
          if (named.value.expired() && named.is_known) lost_.push_back(named.name);
          named = {device, {step, result.tag, static_cast<std::uint16_t>(o), static_cast<std::uint16_t>(i)}, true};
        }
}

void StepLeader::release_values() {
  LogRelease released{.names = std::exchange(lost_, {})};
  for (auto it = named_.begin(); it != named_.end();) {
    if (!it->second.value.expired()) {
      ++it;
      continue;
    }
    released.names.push_back(it->second.name);
    it = named_.erase(it);
  }
  if (!released.names.empty()) write(std::move(released));
}

Engine::Prepared StepLeader::prepare(LaneKey lane, Engine& engine, std::vector<RowInputs> rows) {
  Engine::Prepared out;
  if (Status ended = group_->failure(); !ended) {
    for (const RowInputs& row : rows) out.failed.push_back({row.request, ended.error(), {}, {}, row.tag});
    return out;
  }
  release_values();
  // Those of rows ahead that another engine's step makes; they run when they are certain.
  const auto late =
      std::stable_partition(rows.begin(), rows.end(), [&](const RowInputs& row) { return !waits_for_others(row); });
  std::vector<RowInputs> waiting(std::make_move_iterator(late), std::make_move_iterator(rows.end()));
  rows.erase(late, rows.end());
  if (rows.empty()) {
    out.waiting = std::move(waiting);
    return out;
  }
  LogPrepare entry{.lane = lane, .step = ++num_steps_, .rows = {}};
  for (const RowInputs& row : rows) entry.rows.push_back(row_for_others(row));
  write(std::move(entry));
  try {
    out = engine.prepare(std::move(rows));
  } catch (const std::exception& error) {
    group_->end(std::string("the leader could not prepare a step: ") + error.what());
    throw;
  }
  state_.note(engine.digest(out));
  out.waiting.insert(out.waiting.end(), std::make_move_iterator(waiting.begin()),
                     std::make_move_iterator(waiting.end()));
  if (out.step) open_.push_back({.step = out.step.get(), .number = num_steps_});
  return out;
}

StepLeader::Open& StepLeader::open(const engine::Step& step) {
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& each) { return each.step == &step; });
  MSTAR_CHECK(found != open_.end(), "a step that the group did not prepare");
  return *found;
}

StepLeader::Open StepLeader::take(const engine::Step& step) {
  Open out = std::move(open(step));
  std::erase_if(open_, [&](const Open& each) { return each.step == &step; });
  return out;
}

Result<bool> StepLeader::advance(Engine& engine, engine::Step& step) {
  if (Status ended = group_->failure(); !ended) {
    Engine::fail(step, ended.error());
    return true;
  }
  Open& opened = open(step);
  opened.num_waited_for += group_->num_followers();
  write(LogAdvance{opened.number});
  auto whole = engine.advance(step);
  if (Status ran = Engine::status(step); !ran && group_->computes_together(engine.spec()))
    group_->end("the leader failed a step: " + ran.error().message);
  return whole;
}

const std::vector<RowResult>& StepLeader::promised(Engine& engine, engine::Step& step) {
  const std::uint64_t number = open(step).number;
  write(LogPromise{number});
  const auto& results = engine.promised(step);
  name_values(number, results);
  return results;
}

void StepLeader::drop(Engine& engine, engine::Step& step, std::uint32_t tag) {
  open(step).dropped.push_back(tag);
  engine.drop(step, tag);
}

void StepLeader::wait_for_followers(const engine::Step& step) {
  while (open(step).num_waited_for > 0) {
    std::optional<Ack> ack = group_->wait_ack();
    if (!ack) return group_->end("the group was closed");
    if (ack->rank < 1 || ack->rank >= group_->size()) continue;  // of no follower
    // That of another step, or of one that was abandoned.
    const auto of =
        std::find_if(open_.begin(), open_.end(), [&](const Open& each) { return each.number == ack->step; });
    if (of == open_.end()) continue;
    --of->num_waited_for;
    of->of_followers.resize(static_cast<std::size_t>(group_->size()));
    Status& status = of->of_followers[static_cast<std::size_t>(ack->rank)];
    if (status.ok()) status = std::move(ack->status);
  }
}

// A step that failed on some ranks only has left them in different states.
void StepLeader::compare_ends(const Open& opened, const Status& own) {
  for (std::size_t rank = 1; rank < opened.of_followers.size(); ++rank) {
    const Status& other = opened.of_followers[rank];
    if (other.ok() == own.ok()) continue;
    const std::string who = "rank " + std::to_string(rank) + " of the group";
    return group_->end(own.ok() ? who + " failed a step: " + other.error().message
                                : "the leader failed a step that " + who + " ran: " + own.error().message);
  }
}

std::vector<RowResult> StepLeader::finish(Engine& engine, engine::StepPtr step) {
  wait_for_followers(*step);
  Open opened = take(*step);
  compare_ends(opened, Engine::status(*step));
  if (Status ended = group_->failure(); ended.ok()) {
    write(LogFinish{opened.number, std::move(opened.dropped)});
  } else {
    Engine::fail(*step, ended.error());
  }
  try {
    auto results = engine.finish(std::move(step));
    state_.note(Engine::digest(results));
    name_values(opened.number, results);
    return results;
  } catch (const std::exception& error) {
    group_->end(std::string("the leader could not end a step: ") + error.what());
    throw;
  }
}

void StepLeader::abandon(Engine& engine, engine::StepPtr step) {
  engine.wait(*step);
  write(LogAbandon{take(*step).number});
}

Status StepLeader::wait_loaded() {
  for (int waited_for = group_->num_followers(); waited_for > 0;) {
    std::optional<Ack> ack = group_->wait_ack();
    if (!ack) return unavailable("the group was closed");
    if (ack->step != kLoading) continue;  // of one that was abandoned before
    MSTAR_TRY(std::move(ack->status));
    --waited_for;
  }
  return group_->failure();
}

void StepLeader::undo(LaneKey lane, Engine& engine, RequestId request, const engine::Progress& progress) {
  write(LogUndo{lane, request, progress});
  engine.undo(request, progress);
}

}  // namespace mstar::worker
