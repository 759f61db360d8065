// Resource specs: state that outlives a step. A component that uses none is stateless. Heads are global counts; a
// builder divides them by head_shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mstar/base/dtype.h"
#include "mstar/decl/refs.h"

namespace mstar::decl {

// Bounded memory: the first `sink_tokens` and the last `window_tokens` stay, pages between them are released.
struct Retention {
  int sink_tokens = 0;
  int window_tokens = 0;
};

struct PagedKv {
  std::string name;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int page_tokens = 16;
  int max_tokens_per_request = 0;
  DType dtype = DType::f32;
  std::vector<std::string> labels = {"main"};  // independent page lists of one request; forks copy between them
  std::optional<Retention> retention = {};
  bool prefix_cache = false;     // pages stay after their request, for others whose text begins as it did
  std::int64_t pool_tokens = 0;  // places of all requests together; 0: the worst case of as many as run at once
  int latent_dim = 0;            // > 0: one latent head (MLA) of this width in place of kv_heads x head_dim
};
struct CrossKv {  // an encoder's keys and values, written once, read at each step
  std::string name;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int max_context_tokens = 0;
  DType dtype = DType::f32;
};
struct RingKv {  // the last frames of a world
  std::string name;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int frames = 0;
  int tokens_per_frame = 0;
  int num_worlds = 1;
  DType dtype = DType::f32;
};
struct StateTensor {
  std::string name;
  std::vector<std::int64_t> dims;
  DType dtype = DType::f32;
  int shard_axis = -1;  // of dims, cut evenly over the ranks of a group; -1: whole on each
};
struct RecurrentState {  // one slot of each tensor per (request, label); slot 0 is the sink
  std::string name;
  std::vector<StateTensor> tensors;
  std::vector<std::string> labels = {"main"};
  // A step reads one slot and writes the whole of another, so that it can be taken back: only then may the components
  // that use this state run ahead. Costs its memory twice. False: updated in place.
  bool double_buffered = false;
  // Copies kept beside the pages of a PagedKv, so that its prefix cache serves components with this state too, and the
  // grid of tokens at which they are taken: a multiple of the page. 0: none, and no prefix cache. Most are taken while
  // a step passes them: the components with this state write what resource::StateSlots::kept names.
  int snapshots = 0;
  int snapshot_tokens = 0;
};
enum class LinearKind : std::uint8_t { gdn, kda, mamba2 };
struct LinearAttention {
  std::string name;
  ResourceRef state;
  LinearKind kind = LinearKind::gdn;
  int heads = 0;
};
enum class AttentionKind : std::uint8_t { paged, mla, sparse_mla };
struct Attention {  // step plans for attention over a paged KV
  std::string name;
  ResourceRef kv;
  int heads = 0;
  AttentionKind kind = AttentionKind::paged;
  int sliding_window_tokens = 0;
};
enum class RaggedKind : std::uint8_t { self, cross, block_causal };
struct RaggedAttention {  // no KV: encoders and diffusion transformers
  std::string name;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  RaggedKind kind = RaggedKind::self;
  int max_segments_per_request = 1;
  int max_tokens_per_request = 0;
  bool shard_over_sp = true;
};
enum class PositionKind : std::uint8_t { sequential, block, interleaved_3d };
struct Positions {  // a counter apart from the stored length
  std::string name;
  ResourceRef kv;
  PositionKind kind = PositionKind::sequential;
};
struct Sampler {  // per-request sampling parameters in rows
  std::string name;
  int vocab = 0;
  bool penalties = false;
  bool min_p = false;
  std::vector<std::string> aux = {};        // further samplers on the same rows (seed ^ crc32(label))
  std::vector<std::int32_t> stop_ids = {};  // of the model: no chance before a request's min_tokens
};
struct Latents {  // per-request tensors that a loop updates in place
  std::string name;
  std::vector<StateTensor> tensors;
};

using ResourceSpec = std::variant<PagedKv, CrossKv, RingKv, RecurrentState, LinearAttention, Attention, RaggedAttention,
                                  Positions, Sampler, Latents>;
const std::string& resource_name(const ResourceSpec& spec);
// Of a kind that has labels; null for others.
const std::vector<std::string>* labels_of(const ResourceSpec& spec);

}  // namespace mstar::decl
