// Which kernel runs an op: each op lists its kernels in one constexpr table and takes the first that fits.
#pragma once

#include <cstddef>
#include <string>

#include "mstar/ops/op_context.h"

namespace mstar {

// `fits` sees checked arguments; null fits all. Rows of a table go from the most special to the most general.
template <class Args>
struct Kernel {
  const char* name;
  Backend backend;
  bool (*fits)(const OpContext& context, const Args& args);
  Status (*run)(OpContext& context, const Args& args);
};

template <class Args, std::size_t kNumKernels>
const Kernel<Args>* first_fit(const OpContext& context, const Args& args, const Kernel<Args> (&table)[kNumKernels]) {
  for (const Kernel<Args>& kernel : table)
    if (kernel.backend == context.backend() && (!kernel.fits || kernel.fits(context, args))) return &kernel;
  return nullptr;
}

template <class Args, std::size_t kNumKernels>
Status run_first_fit(OpContext& context, const Args& args, const Kernel<Args> (&table)[kNumKernels], const char* op) {
  const Kernel<Args>* kernel = first_fit(context, args, table);
  if (!kernel)
    return internal_error(std::string(op) + ": no kernel for these arguments on " + context.device.description());
  return kernel->run(context, args);
}

}  // namespace mstar
