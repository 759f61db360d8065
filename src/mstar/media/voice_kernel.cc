#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mstar/media/voice_kernel.cc"
#include "mstar/media/voice_kernel.h"

#include <algorithm>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mstar {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Products {
  const float* x;
  std::size_t step;
  int num_inputs;
  const float* weight;
  const float* bias;
  int num_outputs;
  bool positive;
  float* out;
};

// Two vectors of outputs for each row.
template <int kRows, class D>
void block(const Products& p, D tag, int begin) {
  using V = hn::Vec<D>;
  const int lanes = static_cast<int>(hn::Lanes(tag));
  V low[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) {
    low[r] = p.bias ? hn::LoadU(tag, p.bias + begin) : hn::Zero(tag);
    high[r] = p.bias ? hn::LoadU(tag, p.bias + begin + lanes) : hn::Zero(tag);
  }
  const float* weight = p.weight + begin;
  for (int i = 0; i < p.num_inputs; ++i, weight += p.num_outputs) {
    const V a = hn::LoadU(tag, weight), b = hn::LoadU(tag, weight + lanes);
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(tag, p.x[static_cast<std::size_t>(r) * p.step + static_cast<std::size_t>(i)]);
      low[r] = hn::MulAdd(a, x, low[r]);
      high[r] = hn::MulAdd(b, x, high[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* const out = p.out + r * p.num_outputs + begin;
    hn::StoreU(p.positive ? hn::Max(low[r], hn::Zero(tag)) : low[r], tag, out);
    hn::StoreU(p.positive ? hn::Max(high[r], hn::Zero(tag)) : high[r], tag, out + lanes);
  }
}

template <int kRows>
void rows(const Products& p) {
  const hn::CappedTag<float, 8> tag;
  const int width = 2 * static_cast<int>(hn::Lanes(tag));
  int begin = 0;
  for (; begin + width <= p.num_outputs; begin += width) block<kRows>(p, tag, begin);
  for (; begin < p.num_outputs; ++begin)
    for (int r = 0; r < kRows; ++r) {
      float sum = p.bias ? p.bias[begin] : 0.0f;
      const float* const x = p.x + static_cast<std::size_t>(r) * p.step;
      for (int i = 0; i < p.num_inputs; ++i) sum += p.weight[i * p.num_outputs + begin] * x[i];
      p.out[r * p.num_outputs + begin] = p.positive ? std::max(sum, 0.0f) : sum;
    }
}

void products(const float* x, std::size_t step, int num_rows, int num_inputs, const float* weight, const float* bias,
              int num_outputs, bool positive, float* out) {
  const Products p{x, step, num_inputs, weight, bias, num_outputs, positive, out};
  if (num_rows == 4) {
    rows<4>(p);
  } else if (num_rows == 2) {
    rows<2>(p);
  } else {
    rows<1>(p);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mstar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mstar {
HWY_EXPORT(products);

void voice_products(const float* x, std::size_t step, int num_rows, int num_inputs, const float* weight,
                    const float* bias, int num_outputs, bool positive, float* out) {
  HWY_DYNAMIC_DISPATCH(products)(x, step, num_rows, num_inputs, weight, bias, num_outputs, positive, out);
}

}  // namespace mstar
#endif
