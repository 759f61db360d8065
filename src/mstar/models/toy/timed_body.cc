#include "mstar/models/toy/timed_body.h"

#include "mstar/resource/paged_kv.h"

namespace mstar::models {
namespace {

using engine::Forward;
using engine::RowDemand;
using engine::RowInputs;

constexpr std::uint32_t kWords = 10'000;

class TimedBody final : public engine::ComponentBody {
 public:
  TimedBody(const TimedRefs& refs, std::shared_ptr<const StepCosts> costs, std::shared_ptr<StepTimer> timer,
            Device& device)
      : refs_(refs), costs_(std::move(costs)), timer_(std::move(timer)), device_(device) {}

  std::vector<engine::SlotSpec> input_slots() const override {
    return {{.name = "ids", .dtype = DType::i32, .per_token = true}};
  }
  std::vector<engine::SlotSpec> output_slots() const override {
    return {{.name = "token", .dtype = DType::i32, .to_host = true}};
  }
  Result<RowDemand> declare(const RowInputs& row) override {
    const Value* const prompt = row.value(refs_.prompt);
    const Value* const ids = prompt ? prompt : row.value(refs_.token);
    if (!ids) return internal_error("a row of a null model without tokens");
    RowDemand demand;
    demand.sources = {{0, ids}};
    demand.resources.tokens = prompt ? static_cast<int>(prompt->host.as<std::int32_t>().size()) : 1;
    demand.results = {{.slot = 0, .output = 0, .items = 1}};
    return demand;
  }
  std::size_t workspace_bytes(int, int) const override { return 0; }

  Status forward(Forward& step, int) override {
    const auto& kv = static_cast<const resource::PagedKvPool&>(step.resource(refs_.kv));
    const auto* const ids = step.input(0).data<const std::int32_t>();
    auto* const tokens = step.output(0).data<std::int32_t>();
    StepShape shape{.num_rows = step.num_rows()};
    for (int r = 0; r < step.num_rows(); ++r) {
      const auto row = static_cast<std::size_t>(r);
      const int own = step.demand(r).resources.tokens;
      if (own > 1) shape.num_prompt_tokens += own;
      shape.context_tokens += kv.length(step.row(r).request);
      const std::int32_t last = ids[step.token_offsets()[row + 1] - 1];
      if (step.row_ends(r))
        tokens[step.output_offsets(0)[row]] = next_null_token(last, step.row(r).params->sampling.seed);
    }
    timer_->run_step(device_, *costs_, shape);
    return ok_status();
  }

 private:
  TimedRefs refs_;
  std::shared_ptr<const StepCosts> costs_;
  std::shared_ptr<StepTimer> timer_;
  Device& device_;
};

}  // namespace

std::int32_t next_null_token(std::int32_t token, std::uint64_t seed) {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(token) + seed + 1) * 0x9E3779B97F4A7C15u;
  return static_cast<std::int32_t>((mixed >> 32) % kWords);
}

std::unique_ptr<engine::ComponentBody> make_timed_body(const TimedRefs& refs, std::shared_ptr<const StepCosts> costs,
                                                       std::shared_ptr<StepTimer> timer, Device& device) {
  return std::make_unique<TimedBody>(refs, std::move(costs), std::move(timer), device);
}

}  // namespace mstar::models
