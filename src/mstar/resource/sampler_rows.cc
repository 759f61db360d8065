#include "mstar/resource/sampler_rows.h"

namespace mstar::resource {

void SamplerPool::Request::see(std::int32_t id) {
  if (seen_at.emplace(id, seen.size()).second) seen.push_back(id);
}

TokenBias& SamplerPool::Request::bias_of(std::int32_t id) {
  const auto [it, fresh] = bias_at.emplace(id, biases.size());
  if (fresh) biases.push_back({id, 0});
  return biases[it->second];
}

Result<std::unique_ptr<SamplerPool>> SamplerPool::create(const decl::Sampler& spec, const PoolLimits& limits, Device&) {
  MSTAR_TRY(check_limits(limits, spec.name));
  std::unique_ptr<SamplerPool> pool(new SamplerPool(spec));
  pool->rows_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  for (auto& rows : pool->rows_) rows.reserve(static_cast<std::size_t>(limits.max_rows));
  return pool;
}

Status SamplerPool::add_request(RequestId request, const decl::RequestParams& params) {
  const auto& s = params.sampling;
  Request fresh{.row = {.temperature = static_cast<float>(s.temperature),
                        .top_p = static_cast<float>(s.top_p),
                        .min_p = static_cast<float>(s.min_p),
                        .repetition_penalty = static_cast<float>(s.repetition_penalty),
                        .top_k = s.top_k,
                        .seed = s.seed},
                .presence_penalty = s.presence_penalty,
                .frequency_penalty = s.frequency_penalty,
                .min_tokens = s.min_tokens};
  for (const auto& [id, value] : s.logit_bias) fresh.bias_of(id).value += value;
  requests_.emplace(request, std::move(fresh));
  return ok_status();
}

Result<Admit> SamplerPool::admit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return internal_error("a row of a request that '" + spec_.name + "' does not know");
  if (row.demand.samples) ++it->second.row.offset;
  return Admit::ok;
}

Status SamplerPool::plan(const StepRows& rows, Stream) {
  auto& out = rows_[rows.slot];
  out.clear();
  for (const StepRow& row : rows.rows) {
    const auto it = requests_.find(row.request);
    if (it == requests_.end()) {
      if (row.request.valid()) return internal_error("a step plans a row that '" + spec_.name + "' does not know");
      out.emplace_back();
      continue;
    }
    const Request& request = it->second;
    SamplerRow& planned = out.emplace_back(request.row);
    if (row.demand.samples) --planned.offset;  // admit has advanced it past this row's draw
    planned.needs_more_tokens = static_cast<std::int64_t>(planned.offset) < request.min_tokens;
  }
  return ok_status();
}

void SamplerPool::rollback(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it != requests_.end() && row.demand.samples) --it->second.row.offset;
}

void SamplerPool::note_prompt(RequestId request, std::span<const std::int32_t> ids) {
  const auto it = requests_.find(request);
  if (it == requests_.end() || !it->second.remembers_seen()) return;
  for (const std::int32_t id : ids) it->second.see(id);
}

void SamplerPool::note_drawn(RequestId request, std::int32_t id) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  Request& r = it->second;
  if (r.remembers_seen()) r.see(id);
  if (r.presence_penalty == 0 && r.frequency_penalty == 0) return;
  const bool first = r.counted.insert(id).second;
  r.bias_of(id).value -= static_cast<float>(r.frequency_penalty + (first ? r.presence_penalty : 0));
}

TokenHistory SamplerPool::history(RequestId request) const {
  const auto it = requests_.find(request);
  return it == requests_.end() ? TokenHistory{} : TokenHistory{it->second.seen, it->second.biases};
}

Usage SamplerPool::usage() const {
  return {spec_.name, static_cast<std::int64_t>(requests_.size()), static_cast<std::int64_t>(requests_.size()), 0};
}

}  // namespace mstar::resource
