// What decoder language models share: embedding, layers of any kind, head, the drawn token; and what they declare.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mstar/decl/decl.h"
#include "mstar/engine/component_body.h"
#include "mstar/models/checkpoint_text.h"
#include "mstar/models/model.h"
#include "mstar/nn/residual.h"

namespace mstar::models {

struct TextDecoderConfig {
  std::string architecture;
  int dim = 0;
  int vocab = 0;
  int context_tokens = 0;      // prompt and answer together
  bool prefix_cache = true;    // option prefix_cache: prompts that begin alike are computed once
  std::int64_t kv_tokens = 0;  // places of all requests together; 0: the worst case of as many as run at once
  bool tied = false;           // the head is the embedding table
  float norm_epsilon = 1e-6f;
  float norm_offset = 0;         // 1 where the checkpoint holds weight - 1
  DType storage = DType::f32;    // of matrices that are not in blocks
  bool keep_blocks = true;       // matrices in blocks stay so
  bool batch_invariant = false;  // option batch_invariant: an answer's bits do not depend on what else runs
  Backend backend = Backend::cpu;
  CheckpointText text;

  // What lies between products, and the keys and values: bf16 with bf16 matrices on CUDA, else f32.
  DType activations() const { return backend == Backend::cuda && storage == DType::bf16 ? DType::bf16 : DType::f32; }
  // Options weights, context_tokens, kv_tokens, prefix_cache and batch_invariant, once the checkpoint's own numbers are
  // there. bad_model.
  Status read_options(const ModelSource& source);
};

// The layers between embedding and last norm. Thread: the step's owner.
class DecoderStack {
 public:
  virtual ~DecoderStack() = default;
  // positions [tokens] i32; `head` reads x behind the last layer. Rows may begin anywhere in their sequences.
  virtual Status run(engine::Forward& step, nn::Residual& x, TensorView positions,
                     const nn::Residual::Reader& head) const = 0;
  // Arena bytes that run() takes and gives back, for a step of so many rows with so many tokens together.
  virtual std::size_t workspace_bytes(int rows, int tokens, int num_threads) const = 0;
  virtual std::size_t bytes() const = 0;
};

// A family's own part of a declaration.
struct TextDecoderParts {
  decl::ResourceRef kv;                      // a PagedKv: counts the positions
  std::vector<decl::ResourceRef> more = {};  // what else the layers use
  std::vector<decl::SharedUnits> shared_units = {};
  // Takes the homes "decoder.layer.*".
  std::function<Result<std::unique_ptr<DecoderStack>>(const nn::LoadContext& load, engine::BuildContext& build)> build;
};

// Adds sampler, ports, the component "decoder", the walks prefill and decode with their plan, and the text surfaces.
// Homes beside the layers': decoder.embedding [vocab, dim], decoder.norm [dim], decoder.head [vocab, dim] unless tied.
void add_text_decoder(decl::Decl& d, std::shared_ptr<const TextDecoderConfig> config, TextDecoderParts parts);

}  // namespace mstar::models
