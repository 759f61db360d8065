// The products of the voice network.
#pragma once

#include <cstddef>

namespace mstar {

// out[r][o] = bias[o] + sum over i of x[r * step + i] * weight[i][o]; with `positive` negative results become 0.
// `num_rows` is 1, 2 or 4; `bias` null: none. Each sum runs over i in order, in one accumulator.
void voice_products(const float* x, std::size_t step, int num_rows, int num_inputs, const float* weight,
                    const float* bias, int num_outputs, bool positive, float* out);

}  // namespace mstar
