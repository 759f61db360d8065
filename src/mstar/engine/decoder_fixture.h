// A decoder as the engine's tests and the CUDA bench drive it: one component with paged keys and values and a sampler,
// a prefill walk and a decode loop, and the loop of a worker in small.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "mstar/engine/engine.h"

namespace mstar::engine {

// The declaration of a decoder. Ports: prompt [T] i32 and token i32 in; token and, with `with_logits`, logits [vocab]
// out.
struct DecoderDecl {
  decl::Decl decl{"toy-decoder"};
  decl::ResourceRef kv, sampler;
  decl::PortRef prompt, token, logits;
  decl::ComponentRef component;
  decl::WalkRef prefill, decode;
  const decl::Run* prefill_run = nullptr;
  const decl::Run* decode_run = nullptr;
  bool with_logits = false;
};
struct DecoderSpec {
  decl::PagedKv kv;
  int vocab = 0;
  std::vector<int> captured_rows;  // empty: eager
  std::vector<int> captured_tokens = {};
  std::vector<decl::PiecewiseRegion> regions = {};
  int max_batch_rows = 32;
  bool with_logits = false;
  bool run_ahead = true;
  std::optional<decl::RecurrentState> state = {};  // a third resource
  int chunk_tokens = 0;                            // > 0: chunked_prefill, and so many a step
};
// `build` may keep the pointer: the result has a fixed address.
std::unique_ptr<DecoderDecl> declare_decoder(const DecoderSpec& spec,
                                             std::function<decl::BuildBody(const DecoderDecl&)> build);

// An engine with what it needs, ready to step.
struct DecoderEngine {
  std::unique_ptr<DecoderDecl> declaration;
  std::shared_ptr<BufferPool> buffers;
  std::unique_ptr<ResourceSet> resources;
  std::unique_ptr<weights::WeightMap> weights;
  std::unique_ptr<Engine> engine;
  static Result<DecoderEngine> create(std::unique_ptr<DecoderDecl> declaration, const resource::PoolLimits& limits,
                                      Device& device, ThreadPool* pool = nullptr);
};

struct DecodeRequest {
  std::vector<std::int32_t> prompt;
  int max_tokens = 0;
  std::int32_t stop_id = -1;
  int start_at_step = 0;  // joins the batch at this step of the loop
};
struct DecodeResult {
  std::vector<std::int32_t> tokens;  // the stop id included
  std::vector<float> logits;         // [tokens, vocab], when the decoder gives them
};

// Microseconds of one step's host work, and the device's time from its first copy to its last.
struct StepTimes {
  int rows = 0;
  bool replayed = false;
  double prepare_us = 0, launch_us = 0, wait_us = 0, finish_us = 0, device_us = 0;  // launch: with the promised values
};

struct DecodeOptions {
  bool run_ahead = true;  // prepare and launch N+1 before the tokens of N are read
  int max_rows = 1 << 30;
  double temperature = 0;
  std::vector<StepTimes>* times = nullptr;
};

// Runs the requests to their ends, prompts in steps of their own. Errors: the first of any row.
Result<std::vector<DecodeResult>> decode(DecoderEngine& decoder, Device& device,
                                         const std::vector<DecodeRequest>& requests, const DecodeOptions& options = {});

}  // namespace mstar::engine
