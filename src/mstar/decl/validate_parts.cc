#include <algorithm>
#include <set>
#include <string>

#include "mstar/decl/faults.h"

namespace mstar::decl {
namespace {

template <class T>
bool is_resource(const Decl& model, ResourceRef ref) {
  return ref.value < model.resources().size() && std::holds_alternative<T>(model.at(ref));
}

void positive(const std::string& who, const char* what, std::int64_t value, Faults& faults) {
  if (value < 1) faults.add(who + what + " must be at least 1");
}

void labels(const std::string& who, const std::vector<std::string>& list, Faults& faults) {
  if (list.empty()) faults.add(who + "has no label");
  std::set<std::string> seen;
  for (const std::string& label : list) {
    if (label.empty())
      faults.add(who + "a label is empty");
    else if (!seen.insert(label).second)
      faults.add(who + "label '" + label + "' is there twice");
  }
}

void tensors(const std::string& who, const std::vector<StateTensor>& list, Faults& faults) {
  if (list.empty()) faults.add(who + "has no tensor");
  std::set<std::string> seen;
  for (const StateTensor& each : list) {
    if (each.name.empty() || !seen.insert(each.name).second) faults.add(who + "tensor names must be there and differ");
    if (std::any_of(each.dims.begin(), each.dims.end(), [](std::int64_t d) { return d < 1; }))
      faults.add(who + "tensor '" + each.name + "' has a size below 1");
    if (each.shard_axis < -1 || each.shard_axis >= static_cast<int>(each.dims.size()))
      faults.add(who + "tensor '" + each.name + "' has no axis " + std::to_string(each.shard_axis) + " to cut");
  }
}

struct CheckResource {
  const Decl& model;
  Faults& faults;
  std::string who;

  void operator()(const PagedKv& kv) {
    positive(who, "layers", kv.layers, faults);
    if (kv.latent_dim < 1) {
      positive(who, "kv_heads", kv.kv_heads, faults);
      positive(who, "head_dim", kv.head_dim, faults);
    }
    positive(who, "page_tokens", kv.page_tokens, faults);
    if (kv.max_tokens_per_request < 0) faults.add(who + "max_tokens_per_request must not be negative");
    if (kv.retention && (kv.retention->sink_tokens < 0 || kv.retention->window_tokens < 1))
      faults.add(who + "retention needs sink_tokens >= 0 and window_tokens >= 1");
    labels(who, kv.labels, faults);
  }
  void operator()(const CrossKv& kv) {
    positive(who, "layers", kv.layers, faults);
    positive(who, "kv_heads", kv.kv_heads, faults);
    positive(who, "head_dim", kv.head_dim, faults);
    positive(who, "max_context_tokens", kv.max_context_tokens, faults);
  }
  void operator()(const RingKv& kv) {
    positive(who, "layers", kv.layers, faults);
    positive(who, "kv_heads", kv.kv_heads, faults);
    positive(who, "head_dim", kv.head_dim, faults);
    positive(who, "frames", kv.frames, faults);
    positive(who, "tokens_per_frame", kv.tokens_per_frame, faults);
    positive(who, "num_worlds", kv.num_worlds, faults);
  }
  void operator()(const RecurrentState& state) {
    tensors(who, state.tensors, faults);
    labels(who, state.labels, faults);
    if (state.snapshots < 0 || state.snapshot_tokens < 0) faults.add(who + "snapshots must not be negative");
    if (state.snapshots > 0) positive(who, "snapshot_tokens", state.snapshot_tokens, faults);
  }
  void operator()(const LinearAttention& attention) {
    positive(who, "heads", attention.heads, faults);
    if (!is_resource<RecurrentState>(model, attention.state))
      faults.add(who + "state is not a RecurrentState of this model");
  }
  void operator()(const Attention& attention) {
    positive(who, "heads", attention.heads, faults);
    if (attention.sliding_window_tokens < 0) faults.add(who + "sliding_window_tokens must not be negative");
    if (!is_resource<PagedKv>(model, attention.kv)) faults.add(who + "kv is not a PagedKv of this model");
  }
  void operator()(const RaggedAttention& attention) {
    positive(who, "heads", attention.heads, faults);
    positive(who, "max_segments_per_request", attention.max_segments_per_request, faults);
    if (attention.kv_heads < 0 || attention.head_dim < 0 || attention.max_tokens_per_request < 0)
      faults.add(who + "sizes must not be negative");
  }
  void operator()(const Positions& positions) {
    if (!is_resource<PagedKv>(model, positions.kv) && !is_resource<RingKv>(model, positions.kv))
      faults.add(who + "kv is not a PagedKv or RingKv of this model");
  }
  void operator()(const Sampler& sampler) {
    positive(who, "vocab", sampler.vocab, faults);
    if (!sampler.aux.empty()) labels(who + "aux: ", sampler.aux, faults);
  }
  void operator()(const Latents& latents) { tensors(who, latents.tensors, faults); }
};

void check_buckets(const std::string& who, const char* what, const std::vector<int>& sizes, Faults& faults) {
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] < 1 || (i > 0 && sizes[i] <= sizes[i - 1])) {
      faults.add(who + what + " must be at least 1 and grow");
      return;
    }
}

void check_region(const std::string& component, const PiecewiseRegion& region, Faults& faults) {
  const std::string who = component + "region '" + region.name + "': ";
  const bool packed = !region.tokens.empty();
  if (region.rows.empty()) faults.add(who + "has no rows bucket");
  check_buckets(who, "rows", region.rows, faults);
  check_buckets(who, "tokens", region.tokens, faults);
  positive(who, "max_segments_per_request", region.max_segments_per_request, faults);
  if (!packed && region.max_segments_per_request > 1)
    faults.add(who + "only a packed region has more than one segment");
  if (!region.one_row_per_step) return;
  if (!packed) faults.add(who + "one_row_per_step needs a packed region (tokens)");
  if (!region.lease_before_step) faults.add(who + "one_row_per_step needs lease_before_step");
  if (region.rows != std::vector<int>{1}) faults.add(who + "one_row_per_step needs rows {1}");
}

// A row has one label number for all resources of its component.
void check_label_order(const Decl& model, const DeviceComponent& c, const std::string& who, Faults& faults) {
  const std::vector<std::string>* first = nullptr;
  for (const ResourceRef ref : c.uses) {
    const auto* names = ref.value < model.resources().size() ? labels_of(model.at(ref)) : nullptr;
    if (names && first &&
        !std::equal(names->begin(), names->begin() + std::min(names->size(), first->size()), first->begin()))
      faults.add(who + "resource '" + resource_name(model.at(ref)) +
                 "' lists its labels in another order than the one before");
    if (names) first = names;
  }
}

void check_device(const Decl& model, const DeviceComponent& c, Faults& faults) {
  const std::string who = "component '" + c.name + "': ";
  std::set<ResourceRef> seen;
  for (const ResourceRef ref : c.uses) {
    if (ref.value >= model.resources().size())
      faults.add(who + "uses a resource that is not of this model");
    else if (!seen.insert(ref).second)
      faults.add(who + "uses resource '" + resource_name(model.at(ref)) + "' twice");
  }
  check_label_order(model, c, who, faults);
  positive(who, "max_batch_rows", c.max_batch_rows, faults);
  if (c.max_batch_tokens < 0) faults.add(who + "max_batch_tokens must not be negative");
  if (c.chunked_prefill && c.max_batch_tokens < 1) faults.add(who + "chunked_prefill needs max_batch_tokens");
  if (!(c.slice_ms > 0)) faults.add(who + "slice_ms must be above 0");
  if (is_host_dtype(c.compute)) faults.add(who + "cannot compute in a host dtype");
  check_buckets(who, "capture rows", c.capture.rows, faults);
  check_buckets(who, "capture tokens", c.capture.tokens, faults);
  if (!c.capture.tokens.empty() && c.capture.rows.empty()) faults.add(who + "packed capture buckets need rows too");
  faults.names("region", c.capture.regions, [](const PiecewiseRegion& r) -> const std::string& { return r.name; });
  for (const PiecewiseRegion& region : c.capture.regions) check_region(who, region, faults);
  faults.names("combined walk", c.combined, [](const CombinedWalks& w) -> const std::string& { return w.name; });
  std::set<WalkRef> combined_walks;
  for (const CombinedWalks& combined : c.combined) {
    std::set<WalkRef> walks;
    for (const WalkRef ref : combined.walks) {
      if (ref.value >= model.walks().size()) {
        faults.add(who + "combines a walk that is not of this model");
      } else if (!walks.contains(ref) && !combined_walks.insert(ref).second) {
        faults.add(who + "combines walk '" + model.at(ref).name + "' in two ways");
      }
      walks.insert(ref);
    }
    if (walks.empty()) faults.add(who + "'" + combined.name + "' combines no walks");
  }
}

std::ptrdiff_t stars(const std::string& name) { return std::count(name.begin(), name.end(), '*'); }

struct CheckRule {
  Faults& faults;
  void same(const std::string& from, const std::string& to, const char* kind) {
    if (from.empty() || to.empty())
      faults.add(std::string(kind) + " rule with an empty name");
    else if (stars(from) != stars(to))
      faults.add(std::string(kind) + " rule '" + from + "' -> '" + to +
                 "' does not have the same number of '*' on both sides");
  }
  void operator()(const Rename& rule) { same(rule.from, rule.to, "rename"); }
  void operator()(const Fuse& rule) {
    if (rule.from.size() < 2) faults.add("fuse rule to '" + rule.to + "' needs at least two sources");
    for (const std::string& from : rule.from) same(from, rule.to, "fuse");
  }
  void operator()(const Split& rule) {
    if (rule.to.size() < 2) faults.add("split rule of '" + rule.from + "' needs at least two targets");
    for (const std::string& to : rule.to) same(rule.from, to, "split");
  }
  void operator()(const Drop& rule) {
    if (rule.from.empty()) faults.add("drop rule with an empty name");
  }
};

bool has_heads(const ResourceSpec& spec) {
  if (const auto* const state = std::get_if<RecurrentState>(&spec))
    return std::any_of(state->tensors.begin(), state->tensors.end(),
                       [](const StateTensor& each) { return each.shard_axis >= 0; });
  return std::holds_alternative<PagedKv>(spec) || std::holds_alternative<CrossKv>(spec) ||
         std::holds_alternative<RingKv>(spec);
}

// What is cut over ranks is cut for all that use it.
void check_cuts(const Decl& model, Faults& faults) {
  for (const Component& each : model.components())
    if (!each.on_host() && each.device().sequence_parallel && !each.device().tensor_parallel)
      faults.add("component '" + each.name() + "' is sequence_parallel and not tensor_parallel");
  for (std::uint16_t r = 0; r < model.resources().size(); ++r) {
    if (!has_heads(model.resources()[r])) continue;
    const Component* first = nullptr;
    for (const Component& each : model.components()) {
      if (each.on_host()) continue;
      const auto& uses = each.device().uses;
      if (std::find(uses.begin(), uses.end(), ResourceRef(r)) == uses.end()) continue;
      if (!first) first = &each;
      const auto only_one_is = [&](bool a, bool b, const char* what) {
        if (a != b)
          faults.add("resource '" + resource_name(model.resources()[r]) + "': of '" + first->name() + "' and '" +
                     each.name() + "' only one is " + what);
      };
      const DeviceComponent &a = first->device(), &b = each.device();
      only_one_is(a.tensor_parallel, b.tensor_parallel, "tensor_parallel");
      only_one_is(a.sequence_parallel, b.sequence_parallel, "sequence_parallel");
      only_one_is(a.shard_over_sp, b.shard_over_sp, "shard_over_sp");
    }
  }
}

}  // namespace

void check_resources(const Decl& model, Faults& faults) {
  faults.names("resource", model.resources(), resource_name);
  std::vector<bool> used(model.resources().size(), false);
  const auto use = [&](ResourceRef ref) {
    if (ref.value < used.size()) used[ref.value] = true;
  };
  for (const Component& component : model.components())
    if (!component.on_host())
      for (const ResourceRef ref : component.device().uses) use(ref);
  for (const ResourceSpec& spec : model.resources()) {
    std::visit(CheckResource{model, faults, "resource '" + resource_name(spec) + "': "}, spec);
    if (const auto* linear = std::get_if<LinearAttention>(&spec)) use(linear->state);
    if (const auto* attention = std::get_if<Attention>(&spec)) use(attention->kv);
    if (const auto* positions = std::get_if<Positions>(&spec)) use(positions->kv);
  }
  for (std::size_t r = 0; r < used.size(); ++r)
    if (!used[r]) faults.add("resource '" + resource_name(model.resources()[r]) + "' is used by no component");
  check_cuts(model, faults);
}

void check_components(const Decl& model, Faults& faults) {
  faults.names("component", model.components(), [](const Component& c) -> const std::string& { return c.name(); });
  for (const Component& component : model.components())
    if (!component.on_host()) check_device(model, component.device(), faults);
}

void check_weights(const Decl& model, Faults& faults) {
  for (const WeightRule& rule : model.weight_rules()) std::visit(CheckRule{faults}, rule);
}

}  // namespace mstar::decl
