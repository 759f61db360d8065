// Which replica of each node group a request gets.
#include <algorithm>

#include "mstar/conductor/conductor.h"

namespace mstar::conductor {
namespace {

bool has_prefix_cache(const decl::Decl& decl, decl::ComponentRef component, int& page_tokens) {
  if (decl.at(component).on_host()) return false;
  for (const decl::ResourceRef ref : decl.at(component).device().uses)
    if (const auto* kv = std::get_if<decl::PagedKv>(&decl.at(ref)); kv && kv->prefix_cache) {
      page_tokens = kv->page_tokens;
      return true;
    }
  return false;
}

bool holds_ids(const decl::PortSpec& port) {
  return port.dtype == DType::i32 && std::any_of(port.travel.begin(), port.travel.end(), [](const auto& each) {
           return std::holds_alternative<decl::FromRequest>(each);
         });
}

}  // namespace

// The first port of ids that a component with a prefix cache takes from requests, in each group.
void Conductor::find_prompts() {
  if (options_.routing != Routing::prefix) return;
  for (std::uint32_t m = 0; m < options_.models.size(); ++m) {
    const ServedDeployment& served = options_.models[m];
    const decl::Decl& decl = served.compiled->declaration();
    for (std::size_t g = 0; g < served.groups.size(); ++g) {
      const NodeGroup& group = served.groups[g];
      const auto visit = [&](const decl::Run& run) {
        int page_tokens = 0;
        const bool here =
            std::find(group.components.begin(), group.components.end(), run.component) != group.components.end();
        if (!here || !has_prefix_cache(decl, run.component, page_tokens)) return;
        for (const decl::PortRef port : run.inputs)
          if (holds_ids(decl.at(port)))
            prompts_.try_emplace({m, g}, Prompt{.port = port, .block_tokens = page_tokens, .routes = {}});
      };
      for (std::uint16_t w = 0; w < decl.walks().size(); ++w)
        if (group.walks.empty() ||
            std::find(group.walks.begin(), group.walks.end(), decl::WalkRef(w)) != group.walks.end())
          decl::for_each_run(decl.walks()[w].root, visit);
    }
  }
}

PrefixRoutes::Chain Conductor::chain_of(const Submit& submit, const Prompt& prompt) {
  const auto inputs = submit.inputs.find(prompt.port);
  if (inputs == submit.inputs.end() || inputs->second.empty()) return {};
  return PrefixRoutes::chain_of(submit.params->cache_salt, inputs->second.front().as<std::int32_t>(),
                                prompt.block_tokens);
}

void Conductor::forget_routes(WorkerId worker) {
  for (auto& [group, prompt] : prompts_) prompt.routes.forget(worker);
}

void Conductor::find_replicas() {
  for (const ServedDeployment& served : options_.models) {
    std::vector<ReplicaLoads>& groups = loads_.emplace_back();
    groups.reserve(served.groups.size());
    for (const NodeGroup& group : served.groups) groups.emplace_back(group.replicas);
  }
  for (std::vector<ReplicaLoads>& groups : loads_)
    for (ReplicaLoads& group : groups)
      for (std::size_t i = 0; i < group.size(); ++i) replicas_of_[group.worker(i)].emplace_back(&group, i);
}

Result<std::size_t> Conductor::choose_replica(const Submit& submit, std::size_t g) {
  const auto prompt = prompts_.find({submit.model, g});
  const bool by_prefix = prompt != prompts_.end();
  const PrefixRoutes::Chain chain = by_prefix ? chain_of(submit, prompt->second) : PrefixRoutes::Chain();
  std::size_t chosen = 0;
  {
    std::lock_guard lock(state_mutex_);
    ReplicaLoads& loads = loads_[submit.model][g];
    if (submit.warms.valid()) {
      MSTAR_TRY_ASSIGN(const WorkerId worker, pick_for_warmup(submit, g));
      chosen = *loads.find(worker);
    } else {
      if (!loads.any_takes()) return unavailable(why_not_served(submit.model));
      chosen = pick_replica(submit, g, by_prefix ? &prompt->second.routes : nullptr, chain);
    }
    loads.add(chosen);
  }
  if (by_prefix) prompt->second.routes.note(options_.models[submit.model].groups[g].replicas[chosen], chain);
  return chosen;
}

// One takes requests.
std::size_t Conductor::pick_replica(const Submit& submit, std::size_t g, const PrefixRoutes* routes,
                                    const PrefixRoutes::Chain& chain) {
  const ReplicaLoads& loads = loads_[submit.model][g];
  if (submit.replica && loads.takes(*submit.replica % loads.size())) return *submit.replica % loads.size();
  if (options_.routing == Routing::random) return loads.draw_any(random_);
  if (routes) {
    const int most = loads.least() + options_.prefix_excess;
    const auto knows_most = routes->find(chain, [&](WorkerId worker) {
      const auto replica = loads.find(worker);
      return replica && loads.takes(*replica) && loads.load(*replica) <= most;
    });
    if (knows_most) {
      ++counters_.by_prefix;
      return *loads.find(*knows_most);
    }
  }
  return loads.draw_least(random_);
}

void Conductor::release_replicas(const Request& request) {
  for (std::size_t g = 0; g < request.replicas.size(); ++g) loads_[request.submit.model][g].remove(request.replicas[g]);
}

}  // namespace mstar::conductor
