#include "mstar/engine/decoder_fixture.h"

#include <algorithm>
#include <chrono>

namespace mstar::engine {

std::unique_ptr<DecoderDecl> declare_decoder(const DecoderSpec& spec,
                                             std::function<decl::BuildBody(const DecoderDecl&)> build) {
  auto out = std::make_unique<DecoderDecl>();
  decl::Decl& d = out->decl;
  out->with_logits = spec.with_logits;
  out->kv = d.resource(spec.kv);
  out->sampler = d.resource(decl::Sampler{.name = "sampler", .vocab = spec.vocab});
  out->prompt = d.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {decl::FromRequest{}}});
  out->token = d.port({.name = "token",
                       .dtype = DType::i32,
                       .axes = {{"one", 1}},
                       .travel = {decl::Keep{}, decl::ToClient{}},
                       .counts_token = true});
  if (spec.with_logits)
    out->logits = d.port({.name = "logits", .axes = {{"vocab", spec.vocab}}, .travel = {decl::Keep{}}});
  decl::DeviceComponent component{.name = "decoder", .uses = {out->kv, out->sampler}};
  component.capture.rows = spec.captured_rows;
  component.capture.tokens = spec.captured_tokens;
  component.capture.regions = spec.regions;
  component.max_batch_rows = spec.max_batch_rows;
  component.run_ahead = spec.run_ahead;
  component.chunked_prefill = spec.chunk_tokens > 0;
  component.max_batch_tokens = spec.chunk_tokens;
  if (spec.state) component.uses.push_back(d.resource(*spec.state));
  component.build = build(*out);
  out->component = d.component(std::move(component));
  std::vector<decl::PortRef> outputs = {out->token};
  if (spec.with_logits) outputs.push_back(out->logits);
  out->prefill = d.walk("prefill", decl::Run{.component = out->component, .inputs = {out->prompt}, .outputs = outputs});
  out->decode = d.walk(
      "decode", decl::Loop{.name = "tokens",
                           .body = {decl::Run{.component = out->component, .inputs = {out->token}, .outputs = outputs}},
                           .stop = decl::TokenStop{.token = out->token},
                           .at_most = 1 << 20});
  decl::for_each_run(d.at(out->prefill).root, [&](const decl::Run& run) { out->prefill_run = &run; });
  decl::for_each_run(d.at(out->decode).root, [&](const decl::Run& run) { out->decode_run = &run; });
  return out;
}

Result<DecoderEngine> DecoderEngine::create(std::unique_ptr<DecoderDecl> declaration,
                                            const resource::PoolLimits& limits, Device& device, ThreadPool* pool) {
  DecoderEngine out;
  out.declaration = std::move(declaration);
  const DecoderDecl& d = *out.declaration;
  out.buffers = std::make_shared<BufferPool>(device);
  const decl::ComponentRef components[] = {d.component};
  MSTAR_TRY_ASSIGN(ResourceSet resources,
                   ResourceSet::build(d.decl, components, limits, device, {.tensor = limits.head_shards}));
  out.resources = std::make_unique<ResourceSet>(std::move(resources));
  MSTAR_TRY_ASSIGN(weights::WeightMap map, weights::WeightMap::create(nullptr, {}));
  out.weights = std::make_unique<weights::WeightMap>(std::move(map));
  MSTAR_TRY_ASSIGN(out.engine, Engine::create(d.decl, d.component, {limits, out.buffers, pool}, *out.resources,
                                              *out.weights, device));
  MSTAR_TRY(out.engine->capture());
  return out;
}

namespace {

using Clock = std::chrono::steady_clock;

double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

class Loop {
 public:
  Loop(DecoderEngine& decoder, Device& device, const std::vector<DecodeRequest>& requests, const DecodeOptions& options)
      : d_(*decoder.declaration),
        engine_(*decoder.engine),
        resources_(*decoder.resources),
        device_(device),
        requests_(requests),
        options_(options),
        params_(std::make_shared<decl::RequestParams>()) {
    params_->sampling.temperature = options.temperature;
    live_.resize(requests.size());
    results_.resize(requests.size());
  }

  Result<std::vector<DecodeResult>> run() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      live_[i].prompt = HostValue::i32(requests_[i].prompt);
      MSTAR_TRY(resources_.add_request(id(i), *params_));
    }
    for (int step = 0; !all_done(); ++step) {
      MSTAR_TRY(launch(step));
      const std::size_t keep = options_.run_ahead && launched_ ? 1 : 0;
      while (in_flight_.size() > keep) MSTAR_TRY(finish());
    }
    return std::move(results_);
  }

 private:
  struct Live {
    Value prompt, token;
    int num_launched = 0;
    int num_in_flight = 0;
    bool done = false;
  };
  struct Flight {
    StepPtr step;
    std::vector<std::size_t> rows;
    StepTimes times;
    std::unique_ptr<Event> begin, end;
  };

  RequestId id(std::size_t i) const { return RequestId(first_id_ + i); }
  bool all_done() const {
    return in_flight_.empty() && std::all_of(live_.begin(), live_.end(), [](const Live& l) { return l.done; });
  }
  bool wants(std::size_t i, int step, bool prefill) const {
    return !live_[i].done && requests_[i].start_at_step <= step && (live_[i].num_launched == 0) == prefill &&
           live_[i].num_launched < requests_[i].max_tokens;
  }

  Status launch(int step) {
    bool prefill = false;
    for (std::size_t i = 0; i < live_.size(); ++i) prefill |= wants(i, step, true);
    std::vector<RowInputs> rows;
    std::vector<std::size_t> picked;
    for (std::size_t i = 0; i < live_.size() && static_cast<int>(rows.size()) < options_.max_rows; ++i) {
      if (!wants(i, step, prefill)) continue;
      RowInputs row{.request = id(i), .params = params_, .walk = prefill ? d_.prefill : d_.decode};
      row.run = prefill ? d_.prefill_run : d_.decode_run;
      row.tag = static_cast<std::uint32_t>(i);
      row.ahead = live_[i].num_in_flight > 0;
      row.ports = {{prefill ? live_[i].prompt : live_[i].token}};
      rows.push_back(std::move(row));
      picked.push_back(i);
    }
    launched_ = false;
    if (rows.empty()) return ok_status();
    Flight flight;
    if (options_.times) {
      MSTAR_TRY_ASSIGN(flight.begin, device_.make_event(true));
      MSTAR_TRY_ASSIGN(flight.end, device_.make_event(true));
      flight.begin->record(device_.default_stream());
    }
    const auto start = Clock::now();
    auto prepared = engine_.prepare(std::move(rows));
    const auto ready = Clock::now();
    if (!prepared.failed.empty()) return *prepared.failed.front().error;
    if (!prepared.step) return internal_error("no row was admitted");
    for (const RowInputs& row : prepared.waiting)
      std::erase_if(picked, [&](std::size_t i) { return id(i) == row.request; });
    const std::int64_t replays = engine_.counters().num_replays;
    const auto before_launch = Clock::now();
    for (bool whole = false; !whole;) {
      MSTAR_TRY_ASSIGN(whole, engine_.advance(*prepared.step));
    }
    const auto& promised = engine_.promised(*prepared.step);
    const auto end = Clock::now();
    if (flight.end) flight.end->record(device_.default_stream());
    for (std::size_t r = 0; r < picked.size(); ++r) {
      if (promised[r].error) return *promised[r].error;
      live_[picked[r]].token = promised[r].outputs[0][0];
      ++live_[picked[r]].num_launched;
      ++live_[picked[r]].num_in_flight;
    }
    flight.step = std::move(prepared.step);
    flight.rows = std::move(picked);
    flight.times = {.rows = static_cast<int>(flight.rows.size()),
                    .replayed = engine_.counters().num_replays > replays,
                    .prepare_us = us_between(start, ready),
                    .launch_us = us_between(before_launch, end)};
    in_flight_.push_back(std::move(flight));
    launched_ = true;
    return ok_status();
  }

  Status finish() {
    Flight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const std::size_t i : flight.rows)
      if (live_[i].done) engine_.drop(*flight.step, static_cast<std::uint32_t>(i));
    const auto start = Clock::now();
    engine_.wait(*flight.step);
    const auto ready = Clock::now();
    auto results = engine_.finish(std::move(flight.step));
    flight.times.wait_us = us_between(start, ready);
    flight.times.finish_us = us_between(ready, Clock::now());
    for (std::size_t r = 0; r < flight.rows.size(); ++r) {
      const std::size_t i = flight.rows[r];
      --live_[i].num_in_flight;
      MSTAR_TRY(take(i, results[r]));
      if (live_[i].done && live_[i].num_in_flight == 0) resources_.remove_request(id(i));
    }
    if (options_.times) {
      if (flight.end) flight.end->wait();
      flight.times.device_us = flight.end->us_since(*flight.begin);
      options_.times->push_back(flight.times);
    }
    return ok_status();
  }

  Status take(std::size_t i, const RowResult& row) {
    if (live_[i].done) {
      if (row.error && row.error->code == Code::cancelled) return ok_status();
      return internal_error("a row of a request that had ended gave outputs");
    }
    if (row.error) return *row.error;
    const auto token = row.outputs[0][0].host.as<std::int32_t>();
    if (token.size() != 1) return internal_error("a row gave no token");
    DecodeResult& result = results_[i];
    result.tokens.push_back(token[0]);
    if (d_.with_logits) {
      const auto logits = row.outputs[1][0].host.as<float>();
      result.logits.insert(result.logits.end(), logits.begin(), logits.end());
    }
    live_[i].done =
        token[0] == requests_[i].stop_id || static_cast<int>(result.tokens.size()) == requests_[i].max_tokens;
    return ok_status();
  }

  const DecoderDecl& d_;
  Engine& engine_;
  ResourceSet& resources_;
  Device& device_;
  const std::vector<DecodeRequest>& requests_;
  const DecodeOptions& options_;
  std::shared_ptr<decl::RequestParams> params_;
  std::uint64_t first_id_ = 1;
  std::vector<Live> live_;
  std::vector<DecodeResult> results_;
  std::deque<Flight> in_flight_;
  bool launched_ = false;
};

}  // namespace

Result<std::vector<DecodeResult>> decode(DecoderEngine& decoder, Device& device,
                                         const std::vector<DecodeRequest>& requests, const DecodeOptions& options) {
  return Loop(decoder, device, requests, options).run();
}

}  // namespace mstar::engine
