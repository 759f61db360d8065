// Sampling parameters of each request, gathered into the rows of a step.
#pragma once

#include <unordered_map>
#include <vector>

#include "mstar/resource/resource.h"

namespace mstar::resource {

// What the sample op reads for one row.
struct SamplerRow {
  float temperature = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  std::int32_t top_k = 0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // advances by one for each sampled token
};

class SamplerPool final : public Resource {
 public:
  static Result<std::unique_ptr<SamplerPool>> create(const decl::Sampler& spec, const PoolLimits& limits,
                                                     Device& device);

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override { requests_.erase(request); }
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow& row) override { rollback(row); }
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow&) override {}
  void rollback(const StepRow& row) override;
  Usage usage() const override;
  // On the host, in the step's row order; a row that pads keeps a default.
  const std::vector<SamplerRow>& rows(int slot) const { return rows_[slot]; }

 private:
  explicit SamplerPool(const decl::Sampler& spec) : spec_(spec) {}
  decl::Sampler spec_;
  std::unordered_map<RequestId, SamplerRow> requests_;
  std::vector<std::vector<SamplerRow>> rows_;
};

}  // namespace mstar::resource
