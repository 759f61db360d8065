// Draws on CUDA against the CPU's, and how long they take.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cuda_slice.h"
#include "cuda_slice_timer.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/ops/sample/sample.h"
#include "twin.h"

namespace mstar::bench {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Rows with what their spans point at.
struct RowSet {
  std::vector<SampleRow> rows;
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::vector<TokenBias>> biases;
  std::vector<std::vector<TokenRange>> ranges;

  // The rows as words on a device.
  SampleParametersView on(Place& place) const {
    std::size_t words = 0;
    for (const SampleRow& row : rows) words += sample_list_words(row);
    std::vector<std::int32_t> of_rows(rows.size() * kSampleRowWords), lists(words + 1);
    SampleParametersWriter writer(of_rows, lists);
    for (const SampleRow& row : rows) MSTAR_CHECK(writer.add(row), "room for every row");
    return {static_cast<const SampleRowWords*>(place.i32(of_rows).pointer), place.i32(lists).data<std::int32_t>()};
  }
};

enum class Logits { peaked, flat, rounded, equal, masked };

std::vector<float> logits_of(Logits kind, std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, kind == Logits::flat ? 0.6f : 3.0f);
  std::vector<float> out(static_cast<std::size_t>(count), 1.5f);
  if (kind == Logits::equal) return out;
  for (float& value : out) {
    value = normal(generator);
    if (kind == Logits::rounded) value = to_float(to_bfloat16(value));
    if (kind == Logits::masked && generator() % 4) value = kMasked;
  }
  return out;
}

// Every way to draw, one after the other, with and without lists.
RowSet rows_of(int count, std::int64_t vocabulary, std::uint32_t seed, bool with_lists) {
  std::mt19937 generator(seed);
  const auto any_id = [&] { return static_cast<std::int32_t>(generator() % static_cast<std::uint64_t>(vocabulary)); };
  RowSet out;
  const float temperatures[] = {1.0f, 0.7f, 0.2f, 1.8f, 0.0f}, top_ps[] = {1.0f, 0.95f, 0.5f, 0.999f, 0.0f};
  const std::int32_t top_ks[] = {0, 0, 40, 1, 3000, 100000};
  for (int r = 0; r < count; ++r) {
    SampleRow row{.temperature = temperatures[generator() % 5],
                  .top_k = top_ks[generator() % 6],
                  .top_p = top_ps[generator() % 5],
                  .min_p = generator() % 3 ? 0.0f : 0.02f,
                  .seed = generator(),
                  .offset = static_cast<std::uint64_t>(r)};
    if (with_lists) {
      auto& ids = out.ids.emplace_back();
      for (int i = 0; i < 7; ++i) ids.push_back(any_id());
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      auto& biases = out.biases.emplace_back();
      for (const std::int32_t id : ids) biases.push_back({id, static_cast<float>(generator() % 9) - 4.0f});
      biases.push_back({static_cast<std::int32_t>(vocabulary) + 3, 5.0f});
      const std::int32_t begin = any_id();
      out.ranges.push_back({{begin, begin + 5}, {static_cast<std::int32_t>(vocabulary) - 1, 1 << 30}});
      row.repetition_penalty = 1.3f;
      if (generator() % 4 == 0) row.tail_begin = any_id();
    }
    out.rows.push_back(row);
  }
  for (std::size_t r = 0; with_lists && r < out.rows.size(); ++r) {
    SampleRow& row = out.rows[r];
    row.seen = out.ids[r];
    row.biases = out.biases[r];
    row.suppress_ranges = out.ranges[r];
    if (r % 2) row.suppress = std::span(out.ids[r]).first(1), row.more_suppress = out.ids[(r + 1) % out.rows.size()];
  }
  return out;
}

// How far the random share of the kept weights lies from the token's part of them, as a part of all; 0 when it lies
// there. `logits` after penalties and masks.
double distance_of(std::span<const float> logits, const SampleRow& row, std::int32_t token) {
  std::vector<std::pair<float, std::int32_t>> all;
  const float largest = *std::max_element(logits.begin(), logits.end());
  const float floor = row.min_p > 0 ? largest + row.temperature * std::log(row.min_p) : -3e38f;
  const bool truncates = row.top_k > 0 || row.top_p < 1.0f || row.min_p > 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] >= floor) all.emplace_back(-logits[i], static_cast<std::int32_t>(i));
  if (truncates) std::sort(all.begin(), all.end());
  if (row.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(row.top_k)));
  std::vector<double> through;
  double sum = 0;
  for (const auto& [negative, id] : all)
    through.push_back(sum += std::exp((-static_cast<double>(negative) - largest) / row.temperature));
  std::size_t kept = all.size();
  if (row.top_p < 1.0f)
    kept = std::min(kept, static_cast<std::size_t>(std::lower_bound(through.begin(), through.end(), row.top_p * sum) -
                                                   through.begin()) +
                              1);
  const double target = philox_uniform(row.seed, row.offset) * through[kept - 1];
  for (std::size_t i = 0; i < kept; ++i) {
    if (all[i].second != token) continue;
    const double before = i ? through[i - 1] : 0.0;
    return std::max({0.0, before - target, target - through[i]}) / sum;
  }
  return 1.0;
}

class SampleCheck {
 public:
  SampleCheck(Report& report, Device& cuda) : report_(report), cpu_(make_cpu_device()), pool_(2), cuda_(cuda) {
    cpu_memory_.resize(kArenaBytes);
    auto memory = cuda.allocate(kArenaBytes);
    MSTAR_CHECK(memory.has_value(), "no memory for the arena");
    cuda_memory_ = *memory;
  }
  ~SampleCheck() { cuda_.release(cuda_memory_); }
  SampleCheck(const SampleCheck&) = delete;
  SampleCheck& operator=(const SampleCheck&) = delete;

  void draws(Logits kind, std::int64_t vocabulary, int count, bool with_lists) {
    const RowSet set = rows_of(count, vocabulary, static_cast<std::uint32_t>(vocabulary) + 17, with_lists);
    const std::int64_t stride = vocabulary + (vocabulary % 4 ? 1 : 0);  // unaligned rows too
    std::vector<float> logits = logits_of(kind, count * stride, static_cast<std::uint32_t>(vocabulary));
    Place place(cuda_);
    const TensorView tokens = place.out_i32(count), scores = place.out(1, count).reshaped({count});
    Arena cuda_arena(cuda_memory_, kArenaBytes), cpu_arena(cpu_memory_.data(), kArenaBytes);
    OpContext on_cuda{cuda_, cuda_.default_stream(), cuda_arena}, on_cpu{*cpu_, {}, cpu_arena, &pool_};
    SampleArgs args{.logits = place.f32(logits, {count, vocabulary}, stride),
                    .rows = {},
                    .tokens = tokens,
                    .log_probs = scores,
                    .parameters = set.on(place)};
    const Status ran = sample(on_cuda, args);
    const std::vector<float> got = place.outputs();
    std::vector<std::int32_t> cpu_tokens(static_cast<std::size_t>(count));
    std::vector<float> cpu_scores(static_cast<std::size_t>(count));
    TensorView on_host(logits.data(), DType::f32, {count, vocabulary});
    on_host.strides[0] = stride;
    const Status also = sample(on_cpu, {.logits = on_host,
                                        .rows = set.rows,
                                        .tokens = TensorView(cpu_tokens.data(), DType::i32, {count}),
                                        .log_probs = TensorView(cpu_scores.data(), DType::f32, {count})});
    if (!ran || !also) {
      report_.check(false, "sample", ran ? also.error().message : ran.error().message);
      ++num_wrong_;
      return;
    }
    for (int r = 0; r < count; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::span<const float> own(logits.data() + r * stride, static_cast<std::size_t>(vocabulary));
      const auto token = static_cast<std::int32_t>(got[at]);
      ++num_draws_;
      if (token == cpu_tokens[at]) {
        const float score = got[static_cast<std::size_t>(count) + at];
        if (score != cpu_scores[at] && !(std::fabs(score - cpu_scores[at]) <= 1e-5f * (1 + std::fabs(score)))) {
          report_.check(
              false, text("sample: log-probability of row %d, vocabulary %lld", r, static_cast<long long>(vocabulary)),
              text("%g and not %g", score, cpu_scores[at]));
          ++num_wrong_;
        }
        continue;
      }
      const SampleRow& row = set.rows[at];
      const bool drew =
          row.temperature > 0 && token >= 0 && token < vocabulary && own[static_cast<std::size_t>(token)] != kMasked;
      const double distance = drew ? distance_of(own, row, token) : 1.0;
      if (distance <= 1e-5) {
        ++num_near_;
        continue;
      }
      ++num_wrong_;
      report_.check(false,
                    text("sample: row %d, vocabulary %lld, logits %d", r, static_cast<long long>(vocabulary),
                         static_cast<int>(kind)),
                    text("token %d and not %d, %.1e away; temperature %g, top_k %d, top_p %g, min_p %g, tail %d", token,
                         cpu_tokens[at], distance, row.temperature, row.top_k, row.top_p, row.min_p, row.tail_begin));
    }
  }

  void report_of(std::int64_t vocabulary) {
    const std::int64_t n = vocabulary;
    const std::vector<float> logits = logits_of(Logits::rounded, n, 3);
    Place on_cuda(cuda_), on_cpu(*cpu_);
    std::vector<float> outputs[2];
    for (const bool cuda : {false, true}) {
      Place& place = cuda ? on_cuda : on_cpu;
      Device& device = cuda ? cuda_ : *cpu_;
      Arena arena(cuda ? cuda_memory_ : cpu_memory_.data(), kArenaBytes);
      OpContext ops{device, device.default_stream(), arena};
      LogProbArgs args{.logits = place.f32(logits, {n}), .token = static_cast<std::int32_t>(n / 2)};
      args.out = place.out(21, 2);
      if (cuda) args.drawn = place.i32({args.token}).data<std::int32_t>();
      if (Status ran = log_probabilities(ops, args); !ran) {
        report_.check(false, "log_probabilities", ran.error().message);
        return;
      }
      outputs[cuda] = place.outputs();
    }
    Difference difference;
    difference.add(outputs[1], outputs[0]);
    report_.check(difference.same_places && difference.largest <= 2e-6,
                  text("log_probabilities of %lld", static_cast<long long>(vocabulary)),
                  text("error %.2e", difference.largest));
  }

  void judge(const std::string& what) {
    report_.check(num_wrong_ == 0, what, text("%d rows, %d near ties, %d wrong", num_draws_, num_near_, num_wrong_));
    num_draws_ = num_near_ = num_wrong_ = 0;
  }

 private:
  static constexpr std::size_t kArenaBytes = std::size_t{16} << 20;
  Report& report_;
  std::unique_ptr<Device> cpu_;
  ThreadPool pool_;
  Device& cuda_;
  std::vector<std::byte> cpu_memory_;
  void* cuda_memory_ = nullptr;
  int num_draws_ = 0, num_near_ = 0, num_wrong_ = 0;
};

struct Way {
  const char* name;
  Logits logits;
  SampleRow row;
  bool only_largest;
};

}  // namespace

void check_draws(Report& report, Device& cuda) {
  SampleCheck check(report, cuda);
  // racecheck looks at each of a histogram's additions: a draw from 1000 takes it seconds.
  std::vector<Logits> kinds = {Logits::peaked, Logits::masked};
  if (!report.small) kinds.insert(kinds.end(), {Logits::flat, Logits::rounded});
  for (const bool with_lists : {false, true}) {
    for (const Logits kind : kinds)
      for (const std::int64_t vocabulary : {1, 7, 1000, 51865, 248320})
        if (report.takes(240 * vocabulary))
          check.draws(kind, vocabulary, report.small ? 2 : vocabulary < 2000 ? 100 : 24, with_lists);
    check.judge(with_lists ? "sample with penalties, biases and masks: the CPU's tokens" : "sample: the CPU's tokens");
  }
  for (const std::int64_t vocabulary : {1000, 9000, 51865})
    if (report.takes(240 * vocabulary)) check.draws(Logits::equal, vocabulary, report.small ? 2 : 12, false);
  check.judge("sample of equal logits: the CPU's tokens");
  for (const std::int64_t vocabulary : {21, 51866, 248320})
    if (report.takes(240 * vocabulary)) check.report_of(vocabulary);
}

void time_draws(Report& report, Device& cuda) {
  const Way ways[] = {
      {"largest alone", Logits::peaked, {}, true},
      {"largest", Logits::peaked, {}, false},
      {"draw from all", Logits::peaked, {.temperature = 1.0f}, false},
      {"top_k 50", Logits::peaked, {.temperature = 0.8f, .top_k = 50}, false},
      {"top_p .95, peaked", Logits::peaked, {.temperature = 0.8f, .top_p = 0.95f}, false},
      {"top_p .95, flat", Logits::flat, {.temperature = 1.0f, .top_p = 0.95f}, false},
      {"top_p .9, k 40, min_p",
       Logits::peaked,
       {.temperature = 1.0f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f},
       false},
  };
  report.table.push_back(
      "sample: us a step of 1, 8, 32, 64 rows; at 4.28 TB/s one pass over 64 rows of 248320 is 14.9");
  for (const std::int64_t vocabulary : {151936, 248320}) {
    for (const Way& way : ways) {
      std::string line = text("  %6lld  %-22s", static_cast<long long>(vocabulary), way.name);
      for (const int count : {1, 8, 32, 64}) {
        Place place(cuda);
        RowSet set;
        set.rows.assign(static_cast<std::size_t>(count), way.row);
        for (std::size_t r = 0; r < set.rows.size(); ++r) set.rows[r].seed = r;
        SampleArgs args{.logits = place.f32(logits_of(way.logits, count * vocabulary, 5), {count, vocabulary}),
                        .rows = {},
                        .tokens = place.out_i32(count),
                        .log_probs = place.out(1, count).reshaped({count}),
                        .parameters = set.on(place)};
        args.parameters.only_largest = way.only_largest;
        const std::size_t bytes = sample_workspace_bytes(vocabulary, 1);
        TensorView memory =
            place.f32(std::vector<float>(bytes / sizeof(float)), {static_cast<std::int64_t>(bytes / 4)});
        Arena arena(memory.pointer, bytes);
        OpContext ops{cuda, cuda.default_stream(), arena};
        line += text("  %8.2f", median_call_us(cuda, 20, [&](int) { return sample(ops, args); }));
      }
      report.table.push_back(line);
    }
  }
}

}  // namespace mstar::bench
