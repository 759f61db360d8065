#include "mstar/ops/sample/sample.h"

#include "mstar/ops/op_bench_support.h"

namespace mstar::op_test {
namespace {

void register_sample(const char* name, std::int64_t num_rows, const SampleRow& row, int threads) {
  constexpr std::int64_t kVocabulary = 51865;
  auto host = std::make_shared<Host>(threads);
  auto logits = std::make_shared<std::vector<float>>(random_floats(num_rows * kVocabulary, 1, 3.0f));
  auto rows = std::make_shared<std::vector<SampleRow>>(static_cast<std::size_t>(num_rows), row);
  auto tokens = std::make_shared<std::vector<std::int32_t>>(rows->size());
  auto log_probs = std::make_shared<std::vector<float>>(rows->size());
  register_bench(
      std::string("sample/") + name + "/rows:" + std::to_string(num_rows) + "/threads:" + std::to_string(threads), 0,
      4.0 * static_cast<double>(num_rows * kVocabulary), threads, [=] {
        if (!sample(host->context(),
                    {matrix(*logits, num_rows, kVocabulary), *rows, vector(*tokens), vector(*log_probs)}))
          std::abort();
      });
}

const bool registered = [] {
  static const std::vector<std::int32_t> suppress = {1, 2, 7, 8, 9, 10, 14, 25, 50257, 50362};
  for (const int threads : {1, 2}) {
    for (const std::int64_t num_rows : {1, 8}) {
      SampleRow row;
      row.suppress = suppress;
      register_sample("greedy", num_rows, row, threads);
      row.tail_begin = 50364;
      register_sample("greedy_timestamps", num_rows, row, threads);
      row.temperature = 0.8f;
      register_sample("temperature", num_rows, row, threads);
      row.top_p = 0.9f;
      register_sample("top_p", num_rows, row, threads);
      row.top_k = 50;
      register_sample("top_k", num_rows, row, threads);
    }
  }
  return true;
}();

}  // namespace
}  // namespace mstar::op_test
