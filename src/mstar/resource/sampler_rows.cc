#include "mstar/resource/sampler_rows.h"

namespace mstar::resource {

Result<std::unique_ptr<SamplerPool>> SamplerPool::create(const decl::Sampler& spec, const PoolLimits& limits, Device&) {
  MSTAR_TRY(check_limits(limits, spec.name));
  std::unique_ptr<SamplerPool> pool(new SamplerPool(spec));
  pool->rows_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  for (auto& rows : pool->rows_) rows.reserve(static_cast<std::size_t>(limits.max_rows));
  return pool;
}

Status SamplerPool::add_request(RequestId request, const decl::RequestParams& params) {
  const auto& s = params.sampling;
  requests_.emplace(request, SamplerRow{.temperature = static_cast<float>(s.temperature),
                                        .top_p = static_cast<float>(s.top_p),
                                        .min_p = static_cast<float>(s.min_p),
                                        .repetition_penalty = static_cast<float>(s.repetition_penalty),
                                        .top_k = s.top_k,
                                        .seed = s.seed});
  return ok_status();
}

Result<Admit> SamplerPool::admit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return internal_error("a row of a request that '" + spec_.name + "' does not know");
  if (row.demand.samples) ++it->second.offset;
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
    out.push_back(it->second);
    if (row.demand.samples) --out.back().offset;  // admit has advanced it past this row's draw
  }
  return ok_status();
}

void SamplerPool::rollback(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it != requests_.end() && row.demand.samples) --it->second.offset;
}

Usage SamplerPool::usage() const {
  return {spec_.name, static_cast<std::int64_t>(requests_.size()), static_cast<std::int64_t>(requests_.size()), 0};
}

}  // namespace mstar::resource
