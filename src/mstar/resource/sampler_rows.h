// Sampling parameters of each request, gathered into the rows of a step.
#pragma once

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "mstar/ops/sample/sample.h"
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
  std::uint64_t offset = 0;        // advances by one for each sampled token
  bool needs_more_tokens = false;  // fewer than min_tokens were drawn: stop ids have no chance
};

// Words of penalties, biases and masks that one row may take on a device.
inline constexpr std::size_t kMaxSampleListWords = 16384;

class SamplerPool final : public Resource {
 public:
  // `for_device`: plans write what parameters() gives; else only rows() are kept.
  static Result<std::unique_ptr<SamplerPool>> create(const decl::Sampler& spec, const PoolLimits& limits,
                                                     Device& device, bool for_device);
  static Result<std::unique_ptr<SamplerPool>> create(const decl::Sampler& spec, const PoolLimits& limits,
                                                     Device& device) {
    return create(spec, limits, device, device.id().backend != Backend::cpu);
  }

  Status add_request(RequestId request, const decl::RequestParams& params) override;
  void remove_request(RequestId request) override { requests_.erase(request); }
  Result<Admit> admit(const StepRow& row) override;
  void withdraw(const StepRow& row) override { rollback(row); }
  Status plan(const StepRows& rows, Stream stream) override;
  void commit(const StepRow&) override {}
  void rollback(const StepRow& row) override;
  // How many tokens were drawn, and which, as far as penalties look at them.
  Result<Values> take_out(RequestId request) override;
  Status put_in(RequestId request, const Values& values) override;
  Usage usage() const override;
  std::uint64_t digest() const override;
  // On the host, in the step's row order; a row that pads keeps a default.
  const std::vector<SamplerRow>& rows(int slot) const { return rows_[slot]; }
  // The rows of the slot's step that sample, in their order, with what the requests' tokens up to the plan ask for; at
  // one address for a slot, so that a captured step reads what the latest plan wrote. Pads take the largest logit.
  SampleParametersView parameters(int slot) const;
  // The same on the host, of row `row` of the slot's step, which is the request's. Valid until the request is noted
  // again or removed.
  SampleRow sample_row(int slot, int row, RequestId request) const;

  // Ids of the request's prompt, or of its answer, for the penalties of the rows that are planned later. Cost: O(ids),
  // and nothing for a request without penalties.
  void note_prompt(RequestId request, std::span<const std::int32_t> ids);
  void note_drawn(RequestId request, std::int32_t id);

 private:
  struct Request {
    SamplerRow row;
    double presence_penalty = 0;
    double frequency_penalty = 0;
    std::int64_t min_tokens = 0;
    std::vector<std::int32_t> stop_ids;
    std::vector<std::int32_t> seen;
    std::unordered_map<std::int32_t, std::size_t> seen_at;
    std::vector<TokenBias> biases;
    std::unordered_map<std::int32_t, std::size_t> bias_at;
    std::unordered_set<std::int32_t> counted;  // ids of the answer
    bool remembers_seen() const { return row.repetition_penalty != 1.0f; }
    void see(std::int32_t id);
    std::size_t num_list_words(std::size_t num_stop_ids) const;
    // The bias of the id, made 0 if there is none.
    TokenBias& bias_of(std::int32_t id);
  };
  explicit SamplerPool(const decl::Sampler& spec) : spec_(spec) {}
  SampleRow sample_row(const SamplerRow& planned, const Request* request) const;
  decl::Sampler spec_;
  std::unordered_map<RequestId, Request> requests_;
  std::vector<std::vector<SamplerRow>> rows_;
  std::vector<PlanArrays> arrays_;  // of each slot: rows, lists; empty unless for a device
};

}  // namespace mstar::resource
