#include "mstar/resource/sampler_rows.h"

#include "mstar/base/digest.h"

namespace mstar::resource {

void SamplerPool::Request::see(std::int32_t id) {
  if (seen_at.emplace(id, seen.size()).second) seen.push_back(id);
}

std::size_t SamplerPool::Request::num_list_words(std::size_t num_stop_ids) const {
  return (remembers_seen() ? seen.size() : 0) + 2 * biases.size() + num_stop_ids + stop_ids.size();
}

TokenBias& SamplerPool::Request::bias_of(std::int32_t id) {
  const auto [it, fresh] = bias_at.emplace(id, biases.size());
  if (fresh) biases.push_back({id, 0});
  return biases[it->second];
}

Result<std::unique_ptr<SamplerPool>> SamplerPool::create(const decl::Sampler& spec, const PoolLimits& limits,
                                                         Device& device, bool for_device) {
  MSTAR_TRY(check_limits(limits, spec.name));
  std::unique_ptr<SamplerPool> pool(new SamplerPool(spec));
  const auto max_rows = static_cast<std::size_t>(limits.max_rows);
  pool->rows_.resize(static_cast<std::size_t>(limits.num_plan_slots));
  for (auto& rows : pool->rows_) rows.reserve(max_rows);
  if (!for_device) return pool;
  const std::size_t counts[] = {max_rows * kSampleRowWords, max_rows * kMaxSampleListWords};
  for (std::size_t slot = 0; slot < pool->rows_.size(); ++slot) {
    MSTAR_TRY_ASSIGN(PlanArrays arrays, PlanArrays::create(device, counts));
    pool->arrays_.push_back(std::move(arrays));
  }
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
                .min_tokens = s.min_tokens,
                .stop_ids = s.stop_ids};
  for (const auto& [id, value] : s.logit_bias) fresh.bias_of(id).value += value;
  requests_.emplace(request, std::move(fresh));
  return ok_status();
}

Result<Admit> SamplerPool::admit(const StepRow& row) {
  const auto it = requests_.find(row.request);
  if (it == requests_.end()) return internal_error("a row of a request that '" + spec_.name + "' does not know");
  if (!row.demand.samples) return Admit::ok;
  Request& request = it->second;
  if (!arrays_.empty() && request.num_list_words(spec_.stop_ids.size()) > kMaxSampleListWords)
    return invalid_request("repetition_penalty, logit_bias and stop tokens together name more than " +
                           std::to_string(kMaxSampleListWords) +
                           " tokens by now; leave repetition_penalty out, or ask for less text");
  ++request.row.offset;
  return Admit::ok;
}

SampleRow SamplerPool::sample_row(const SamplerRow& planned, const Request* request) const {
  if (!request) return {};
  SampleRow out{.repetition_penalty = planned.repetition_penalty,
                .seen = request->seen,
                .biases = request->biases,
                .temperature = planned.temperature,
                .top_k = planned.top_k,
                .top_p = planned.top_p,
                .min_p = planned.min_p,
                .seed = planned.seed,
                .offset = planned.offset};
  if (planned.needs_more_tokens) {
    out.suppress = spec_.stop_ids;
    out.more_suppress = request->stop_ids;
  }
  return out;
}

Status SamplerPool::plan(const StepRows& rows, Stream stream) {
  auto& out = rows_[rows.slot];
  out.clear();
  const bool for_device = !arrays_.empty();
  const PlanArrays* const arrays = for_device ? &arrays_[rows.slot] : nullptr;
  SampleParametersWriter writer(for_device ? arrays->host(0) : std::span<std::int32_t>{},
                                for_device ? arrays->host(1) : std::span<std::int32_t>{});
  const auto write = [&](const StepRow& row, const SamplerRow& planned, const Request* request) {
    return !for_device || !(row.demand.samples || rows.packed) || writer.add(sample_row(planned, request));
  };
  for (const StepRow& row : rows.rows) {
    const auto it = requests_.find(row.request);
    if (it == requests_.end()) {
      if (row.request.valid()) return internal_error("a step plans a row that '" + spec_.name + "' does not know");
      if (!write(row, out.emplace_back(), nullptr)) return internal_error("more rows than '" + spec_.name + "' plans");
      continue;
    }
    const Request& request = it->second;
    SamplerRow& planned = out.emplace_back(request.row);
    if (row.demand.temperature >= 0) planned.temperature = row.demand.temperature;
    if (row.demand.samples) --planned.offset;  // admit has advanced it past this row's draw
    planned.needs_more_tokens = static_cast<std::int64_t>(planned.offset) < request.min_tokens;
    // A row that is not sampled has a place in packed steps alone; what is drawn for it is nobody's, so its lists stay
    // out.
    if (!write(row, planned, row.demand.samples ? &request : nullptr))
      return internal_error("a request's penalties grew past what '" + spec_.name + "' plans after it was admitted");
  }
  if (for_device) arrays->upload(writer.num_list_words(), stream);
  return ok_status();
}

SampleParametersView SamplerPool::parameters(int slot) const {
  if (arrays_.empty()) return {};
  const PlanArrays& arrays = arrays_[static_cast<std::size_t>(slot)];
  return {reinterpret_cast<const SampleRowWords*>(arrays.on_device(0)), arrays.on_device(1)};
}

SampleRow SamplerPool::sample_row(int slot, int row, RequestId request) const {
  const auto it = requests_.find(request);
  const SamplerRow& planned = rows_[static_cast<std::size_t>(slot)][static_cast<std::size_t>(row)];
  return sample_row(planned, it == requests_.end() ? nullptr : &it->second);
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

Usage SamplerPool::usage() const {
  return {spec_.name, static_cast<std::int64_t>(requests_.size()), static_cast<std::int64_t>(requests_.size()), 0};
}

std::uint64_t SamplerPool::digest() const {
  std::uint64_t sum = Resource::digest();
  for (const auto& [id, request] : requests_) {
    Digest each;
    each.add(id.value);
    each.add(request.row.offset);
    sum += each.value();
  }
  return sum;
}

}  // namespace mstar::resource
