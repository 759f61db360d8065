#include "mstar/resource/sampler_rows.h"

namespace mstar::resource {

Result<std::unique_ptr<SamplerPool>> SamplerPool::create(const decl::Sampler& spec, const PoolLimits& limits, Device&) {
  std::unique_ptr<SamplerPool> pool(new SamplerPool(spec));
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
    out.push_back(requests_.at(row.request));
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
