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

Result<WorkerId> Conductor::choose_replica(const Submit& submit, std::size_t g) {
  const auto prompt = prompts_.find({submit.model, g});
  if (prompt == prompts_.end()) return pick_replica(submit, g, nullptr, {});
  const PrefixRoutes::Chain chain = chain_of(submit, prompt->second);
  auto chosen = pick_replica(submit, g, &prompt->second.routes, chain);
  if (chosen) prompt->second.routes.note(*chosen, chain);
  return chosen;
}

Result<WorkerId> Conductor::pick_replica(const Submit& submit, std::size_t g, const PrefixRoutes* routes,
                                         const PrefixRoutes::Chain& chain) {
  struct Candidate {
    WorkerId worker;
    int load = 0;
  };
  std::vector<Candidate> candidates;
  std::vector<WorkerId> best;
  int least = 0;
  std::lock_guard lock(state_mutex_);
  if (submit.warms.valid()) return pick_for_warmup(submit, g);
  const std::vector<WorkerId>& replicas = options_.models[submit.model].groups[g].replicas;
  if (submit.replica && takes_requests(replicas[*submit.replica % replicas.size()]))
    return replicas[*submit.replica % replicas.size()];
  for (const WorkerId replica : replicas) {
    if (!takes_requests(replica)) continue;
    const auto at = load_.find({submit.model, g, replica});
    const int load = at == load_.end() || options_.routing == Routing::random ? 0 : at->second;
    candidates.push_back({replica, load});
    if (best.empty() || load < least) {
      best.clear();
      least = load;
    }
    if (load == least) best.push_back(replica);
  }
  if (best.empty()) return unavailable(why_not_served(options_.models[submit.model]));
  WorkerId knows_most;
  std::pair<int, std::uint64_t> most;  // blocks, and when
  for (const Candidate& each : candidates) {
    if (!routes || each.load > least + options_.prefix_excess) continue;
    const std::pair<int, std::uint64_t> known(routes->num_known(each.worker, chain),
                                              routes->last_had(each.worker, chain));
    if (known.first == 0 || known <= most) continue;
    most = known;
    knows_most = each.worker;
  }
  if (knows_most.valid()) {
    ++counters_.by_prefix;
    return knows_most;
  }
  return best[best.size() == 1 ? 0 : random_() % best.size()];
}

}  // namespace mstar::conductor
