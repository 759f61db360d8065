// Few queries whose head shares its keys with no other, as Whisper's: there is one multiplication for each number that
// memory gives, so tensor cores have nothing to add, and keys and values go from memory to registers once.
//
// Keys are taken in units of 16, one of a warp's: eight lanes have a key, eight dimensions each. Unit u belongs to part
// u % 32, which one warp attends with a running maximum; a (token, head) is for one block or for a cluster of them,
// each with some of the parts, and the cluster's first block combines all. So neither the units of a part nor the order
// in which parts are added depends on how many blocks there are: a query's bits depend on its own row alone.
#include <algorithm>
#include <cstdint>

#include "mstar/ops/attention/alone_cuda.cuh"
#include "mstar/ops/cuda_rows.cuh"

namespace mstar {
namespace {

using namespace cuda;
using namespace cuda::alone;

constexpr int kMostBlocks = kParts / kWarps;
constexpr int kMultiprocessors = 132;

template <class Q, class Keys>
struct Problem {
  TokenHeads<const Q> q;
  const std::int32_t* offsets = nullptr;
  int num_rows = 0;
  Keys source;
  TokenHeads<const bf16> new_keys, new_values;  // where kNew
  int most = 0;                                 // rows of more tokens are somebody else's
  int blocks = 1;                               // of a (token, head)
  float factor = 1;
  TokenHeads<Q> out;
};

// Blocks (head and its blocks, token). kEarly: no kernel just in front writes to the keys, so they are loaded before it
// has ended: the first unit of a warp to registers, kHeld more to shared memory, what follows to the L2 cache. kNew:
// the step's own tokens come from new_keys and new_values, and are written to the source.
template <class Q, class Keys, bool kEarly, bool kNew, int kHeld>
__global__ void __launch_bounds__(kThreads, kNew ? 4 : 5) attend_alone(const __grid_constant__ Problem<Q, Keys> p) {
  __shared__ __align__(16) Memory memory;
  constexpr int kHeldRows = kLoads * kWarp;
  __shared__ uint4 held[kHeld > 0 ? kWarps * kHeld * 2 * kHeldRows : 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = static_cast<int>(blockIdx.x) / p.blocks, rank = static_cast<int>(blockIdx.x) % p.blocks;
  const int token = blockIdx.y, num_warps = kWarps * p.blocks, own_warp = rank * kWarps + warp;
  const bool clustered = p.blocks > 1;
  if (clustered) {
    if (threadIdx.x == 0) {
      init_barrier(address_in_shared(&memory.barrier), 1);
      publish_barriers();
    }
    arrive_with_barriers();
    __syncthreads();  // for racecheck, which knows no barriers of clusters; kernels in front still run
  }
  const Row row = find_row(p.offsets, p.num_rows, token);
  const bool ours = row.count <= p.most && token < row.begin + row.count;
  const int num_keys = kNew ? min(p.source.lengths[row.index] - row.count, p.source.capacity())
                            : p.source.num_keys(row.index, row.count, token - row.begin);
  const int num_units = ours ? (max(num_keys, 0) + kUnitKeys - 1) / kUnitKeys : 0;
  const auto unit_at = [&](int index) {
    const std::int64_t place = p.source.at(row.index, index * kUnitKeys, head);
    return Unit{static_cast<const bf16*>(p.source.keys) + place, static_cast<const bf16*>(p.source.values) + place,
                p.source.stride(), num_keys - index * kUnitKeys};
  };

  int part = own_warp, index = part;  // of the unit that is worked on
  Unit unit;
  Loaded keys, values;
  // The keys of the warp's unit 1 + `later`, then the values.
  const auto held_of = [&](int later) { return held + (warp * kHeld + later) * 2 * kHeldRows; };
  const auto load_first = [&] {
    if (index >= num_units) return;
    unit = unit_at(index);
    keys.load(unit.keys, unit.stride, unit.count);
    values.load(unit.values, unit.stride, unit.count);
#pragma unroll
    for (int later = 0; later < kHeld; ++later) {
      if (index + (later + 1) * kParts >= num_units) break;
      const Unit next = unit_at(index + (later + 1) * kParts);
      hold(held_of(later), next.keys, next.stride, next.count);
      hold(held_of(later) + kHeldRows, next.values, next.stride, next.count);
    }
    if constexpr (kHeld > 0) commit_copies();
    for (int later = index + (kHeld + 1) * kParts; later < num_units; later += kParts) {
      const Unit next = unit_at(later);
      const int key = lane % kUnitKeys;
      if (key < next.count) prefetch((lane < kUnitKeys ? next.keys : next.values) + key * next.stride);
    }
  };
  if constexpr (kEarly) load_first();
  await_inputs();
  if (!ours) return;
  if constexpr (!kEarly) load_first();
  float query[8];
  load_unit(p.q.data + token * p.q.token_stride + head * kHeadDim + lane % kLanesAKey * 8, 8, true, query);
#pragma unroll
  for (int i = 0; i < 8; ++i) query[i] *= p.factor;
  // The step's own tokens are for the warp that has least to do besides.
  const bool takes_new = kNew && own_warp == num_warps - 1;
  const int num_new = token - row.begin + 1;
  const auto new_unit = [&](int first) {
    const auto from = [&](const TokenHeads<const bf16>& rows) {
      return rows.data + (row.begin + first) * rows.token_stride + head * kHeadDim;
    };
    return Unit{from(p.new_keys), from(p.new_values), p.new_keys.token_stride, num_new - first};
  };
  Loaded new_keys, new_values;
  const auto load_new = [&](int first) {
    const Unit fresh = new_unit(first);
    new_keys.load(fresh.keys, fresh.stride, fresh.count);
    new_values.load(fresh.values, p.new_values.token_stride, fresh.count);
  };
  if (takes_new) load_new(0);
  if (clustered) {
    if (rank == 0 && threadIdx.x == 0)
      arrive_and_expect(address_in_shared(&memory.barrier),
                        (min(num_units, kParts) + (kNew ? 1 : 0)) * Memory::kPartBytes);
    wait_for_cluster();  // the first block is there
  }

  Running running;
  float scores[kLoads];
  while (index < num_units) {
    int next_part = part, next_index = index + kParts;
    if (next_index >= num_units) next_part += num_warps, next_index = next_part;
    const bool more = next_part < kParts && next_index < num_units;
    const int later = (next_index - own_warp) / kParts - 1;
    const bool is_held = kHeld > 0 && next_part == own_warp && later < kHeld;
    score(query, keys, unit.count, scores);
    if (more) {
      unit = unit_at(next_index);
      if (is_held) {
        wait_copies<0>();
        keys.take(held_of(later));
      } else {
        keys.load(unit.keys, unit.stride, unit.count);
      }
    }
    add_values(scores, values, running);
    if (more && is_held) {
      values.take(held_of(later) + kHeldRows);
    } else if (more) {
      values.load(unit.values, unit.stride, unit.count);
    }
    if (next_part != part) finish_part(memory, part, running, clustered);
    if (!more) break;
    part = next_part, index = next_index;
  }
  if (takes_new) {
    for (int first = 0; first < num_new; first += kUnitKeys) {
      if (first > 0) load_new(first);
      score(query, new_keys, num_new - first, scores);
      add_values(scores, new_values, running);
    }
    finish_part(memory, kParts, running, clustered);
    // Its own key and value, which were in the last unit.
    const int at = (num_new - 1) % kUnitKeys, position = p.source.lengths[row.index] - row.count + num_new - 1;
    if (position >= 0 && position < p.source.capacity()) {
      const std::int64_t to = p.source.at(row.index, position, head) + lane % kLanesAKey * 8;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        if (j * kGroups + lane / kLanesAKey != at) continue;
        *reinterpret_cast<uint4*>(static_cast<bf16*>(p.source.keys) + to) = new_keys.rows[j];
        *reinterpret_cast<uint4*>(static_cast<bf16*>(p.source.values) + to) = new_values.rows[j];
      }
    }
  }
  if (clustered) {
    if (rank != 0) return;
    wait_for_phase(address_in_shared(&memory.barrier), 0);
  } else {
    __syncthreads();
  }
  combine<kNew>(memory, min(num_units, kParts), p.out.data + token * p.out.token_stride + head * kHeadDim);
}

// Blocks of a (token, head): as many as are resident together, if there are keys for all their warps. A power of two.
int blocks_of(std::int64_t pairs, int capacity, int resident) {
  constexpr int kUnitsABlock = 12;
  const int units = (capacity + kUnitKeys - 1) / kUnitKeys, most = (units + kUnitsABlock - 1) / kUnitsABlock;
  int blocks = kMostBlocks;
  while (blocks > 1 && (blocks > most || pairs * blocks > static_cast<std::int64_t>(resident) * kMultiprocessors))
    blocks /= 2;
  return blocks;
}

template <int kHeld, bool kEarly, bool kNew, class Q, class Keys>
Status launch_held(OpContext& context, const Problem<Q, Keys>& problem, int num_tokens, int heads) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(problem.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(heads * problem.blocks), static_cast<unsigned>(num_tokens));
  config.blockDim = kThreads;
  config.stream = stream_of(context);
  config.attrs = attributes;
  config.numAttrs = problem.blocks > 1 ? 2 : 1;
  // An error stays for cuda_launch_status().
  (void)cudaLaunchKernelEx(&config, attend_alone<Q, Keys, kEarly, kNew, kHeld>, problem);
  return cuda_launch_status("attention of heads that share no keys");
}

template <bool kEarly, bool kNew, class Q, class Keys>
Status launch(OpContext& context, Problem<Q, Keys> problem, int num_tokens, int heads) {
  problem.blocks = blocks_of(static_cast<std::int64_t>(num_tokens) * heads, problem.source.capacity(), kNew ? 4 : 5);
  if constexpr (kEarly && !kNew)
    if (problem.blocks == kMostBlocks) return launch_held<2, kEarly, kNew>(context, problem, num_tokens, heads);
  return launch_held<0, kEarly, kNew>(context, problem, num_tokens, heads);
}

template <class Q, class Args, class Keys>
Problem<Q, Keys> problem_of(const Args& args, const Keys& keys, int most) {
  Problem<Q, Keys> problem;
  problem.q = token_heads_of<const Q>(args.q);
  problem.offsets = args.rows.offsets;
  problem.num_rows = args.rows.num_rows;
  problem.source = keys;
  problem.most = most;
  problem.factor = args.scale * 1.44269504088896341f;
  problem.out = token_heads_of<Q>(args.out);
  return problem;
}

}  // namespace

Status attention_alone_cuda(OpContext& context, const SlotAttentionArgs& args, int most) {
  return launch<true, false>(context, problem_of<bf16>(args, slots_of(args.kv), most), args.rows.num_tokens,
                             static_cast<int>(args.q.dim(1)));
}

Status attention_alone_cuda(OpContext& context, const PagedAttentionArgs& args, int most) {
  const int tokens = args.rows.num_tokens, heads = static_cast<int>(args.q.dim(1));
  const auto run = [&](auto element) {
    auto problem = problem_of<decltype(element)>(args, pages_of(args.kv), most);
    if (!args.new_keys.pointer) return launch<false, false>(context, problem, tokens, heads);
    problem.new_keys = token_heads_of<const bf16>(args.new_keys);
    problem.new_values = token_heads_of<const bf16>(args.new_values);
    return launch<true, true>(context, problem, tokens, heads);
  };
  return args.q.dtype == DType::bf16 ? run(bf16{}) : run(float{});
}

}  // namespace mstar
