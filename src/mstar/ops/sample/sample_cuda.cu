// The first pass over a row: penalties, biases and masks, the largest logit and the sum of powers; and the end of rows
// that take the largest. sample_draw_cuda.cu draws.
#include "mstar/ops/sample/sample_rows_cuda.cuh"

namespace mstar {
namespace {

using namespace cuda;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kLoads = kScanPart / kThreads / 4;

__device__ inline bool is_edited(const SampleRowWords& row) {
  return row.seen.count > 0 || row.biases.count > 0 || row.suppress.count > 0 || row.ranges.count > 0;
}

// Changes the logits of ids [begin, end) in the CPU's order. An id is in `seen` and in `biases` once.
__device__ inline void edit(float* logits, int begin, int end, const SampleRowWords& row, const std::int32_t* lists) {
  const auto each = [&](WordList list, int step, auto run) {
    for (int i = threadIdx.x * step; i < list.count; i += kThreads * step) {
      const int id = lists[list.begin + i];
      if (id >= begin && id < end) run(logits[id], i);
    }
    __syncthreads();
  };
  each(row.seen, 1, [&](float& logit, int) {
    logit = logit > 0 ? __fdiv_rn(logit, row.repetition_penalty) : __fmul_rn(logit, row.repetition_penalty);
  });
  each(row.biases, 2,
       [&](float& logit, int i) { logit = __fadd_rn(logit, __int_as_float(lists[row.biases.begin + i + 1])); });
  each(row.suppress, 1, [&](float& logit, int) { logit = -INFINITY; });
  for (int r = 0; r < row.ranges.count; r += 2) {
    const int from = max(begin, lists[row.ranges.begin + r]), to = min(end, lists[row.ranges.begin + r + 1]);
    for (int id = from + static_cast<int>(threadIdx.x); id < to; id += kThreads) logits[id] = -INFINITY;
  }
  __syncthreads();
}

struct ScanScratch {
  Best bests[kWarps];
  double sums[kWarps];
};

// Of this thread's values with ids [from, to); value 4 j + k has id first + j * 4 kThreads + k.
__device__ inline Scan scan_ids(const float (&values)[kLoads][4], int first, int from, int to, ScanScratch& scratch) {
  Best best{-INFINITY, 0x7fffffff};
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int id = first + j * 4 * kThreads + k;
      if (id >= from && id < to && values[j][k] > best.logit) best = {values[j][k], id};
    }
  }
  best = warp_best(best);
  if (threadIdx.x % kWarp == 0) scratch.bests[threadIdx.x / kWarp] = best;
  __syncthreads();
  best = scratch.bests[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) best = better(best, scratch.bests[i]);
  float sum = 0;
  if (best.logit != -INFINITY) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int id = first + j * 4 * kThreads + k;
        if (id >= from && id < to) sum += expf(values[j][k] - best.logit);
      }
    }
  }
  return {best, block_sum<kWarps>(static_cast<double>(sum), scratch.sums)};
}

// Blocks (part, row).
__global__ void __launch_bounds__(kThreads)
    scan_parts(Rows logits, int vocabulary, bool aligned, const SampleRowWords* rows, const std::int32_t* lists,
               Scan* scans) {
  await_inputs();
  __shared__ ScanScratch scratch;
  float* const row = logits.row(blockIdx.y);
  const int begin = blockIdx.x * kScanPart, end = min(vocabulary, begin + kScanPart);
  const int first = begin + 4 * static_cast<int>(threadIdx.x);
  float values[kLoads][4];
  const auto load = [&] {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int id = first + j * 4 * kThreads;
      load_group<4>(row + id, end - id, aligned, values[j]);
    }
  };
  load();  // before it is known whether there is something to change, for that takes its time too
  int tail_begin = -1;
  if (rows) {
    const SampleRowWords& wanted = rows[blockIdx.y];
    tail_begin = wanted.tail_begin;
    if (is_edited(wanted)) {
      edit(row, begin, end, wanted, lists);
      load();
    }
  }
  Scan* const to = scans + 2 * (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x);
  const int middle = tail_begin < 0 ? end : tail_begin;
  const Scan head = scan_ids(values, first, begin, min(end, middle), scratch);
  if (threadIdx.x == 0) to[0] = head;
  if (tail_begin < 0) return;
  __syncthreads();
  const Scan tail = scan_ids(values, first, max(begin, middle), end, scratch);
  if (threadIdx.x == 0) to[1] = tail;
}

// One warp a row.
__global__ void __launch_bounds__(kWarp)
    take_largest(const Scan* scans, int num_parts, int vocabulary, const SampleRowWords* rows, std::int32_t* tokens,
                 float* log_probs) {
  await_inputs();
  const int row = blockIdx.x;
  const Scan all =
      scan_of_row(scans + 2 * static_cast<std::int64_t>(row) * num_parts, num_parts, rows ? rows[row].tail_begin : -1)
          .scan;
  if (threadIdx.x != 0) return;
  const bool masked = all.best.logit == -INFINITY || all.best.id >= vocabulary;
  tokens[row] = masked ? 0 : all.best.id;
  log_probs[row] = masked ? -INFINITY : static_cast<float>(-log(all.sum));
}

}  // namespace

// Without parameters on the device: rows that want nothing but the largest logit.
bool sample_cuda_fits(const OpContext&, const SampleArgs& args) {
  if (args.parameters.rows) return args.parameters.only_largest || args.logits.dim(1) <= kMaxDrawVocabularyCuda;
  for (const SampleRow& row : args.rows)
    if (row.temperature > 0 || row.repetition_penalty != 1.0f || row.tail_begin >= 0 || !row.suppress.empty() ||
        !row.more_suppress.empty() || !row.suppress_ranges.empty() || !row.biases.empty())
      return false;
  return true;
}

Status sample_cuda(OpContext& context, const SampleArgs& args) {
  const int num_rows = static_cast<int>(args.logits.dim(0)), vocabulary = static_cast<int>(args.logits.dim(1));
  if (num_rows == 0) return {};
  const auto mark = context.arena.mark();
  const int parts = num_scan_parts(vocabulary);
  auto* const scans = static_cast<Scan*>(
      context.arena.take(2 * sizeof(Scan) * static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(parts)));
  const SampleParametersView& parameters = args.parameters;
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(args.logits.pointer) % 16 == 0 && args.logits.stride(0) % 4 == 0;
  launch_kernel(context, scan_parts, dim3(parts, num_rows), kThreads, 0, rows_of(args.logits), vocabulary, aligned,
                parameters.rows, parameters.lists, scans);
  if (parameters.rows && !parameters.only_largest) {
    MSTAR_TRY(sample_draw_cuda(context, args, scans));
  } else {
    launch_kernel(context, take_largest, num_rows, kWarp, 0, scans, parts, vocabulary, parameters.rows,
                  args.tokens.data<std::int32_t>(), args.log_probs.data<float>());
  }
  context.arena.rewind(mark);
  return cuda_launch_status("sample");
}

}  // namespace mstar
