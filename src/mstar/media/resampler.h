// Sample-rate conversion of mono audio as a stream.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mstar/base/result.h"

struct soxr;

namespace mstar {

// libsoxr at its "high quality" setting (20 bits, linear phase, delay compensated: output sample 0 is input sample 0).
// One thread; holds a few thousand samples. The same input in the same pieces gives the same bits.
class Resampler {
 public:
  // Rates in Hz, both > 0. Error: internal if libsoxr refuses them.
  static Result<Resampler> create(double from_hz, double to_hz);

  struct Progress {
    std::size_t num_consumed = 0;  // samples of `in` taken; offer the rest again
    std::size_t num_produced = 0;  // samples written to `out`
  };
  // Finite samples in. Error: internal.
  Result<Progress> push(std::span<const float> in, std::span<float> out);
  // After the last push: writes what is still held back; repeat until it returns 0. Error: internal.
  Result<std::size_t> finish(std::span<float> out);

 private:
  struct Deleter {
    void operator()(soxr* p) const;
  };
  explicit Resampler(soxr* handle) : handle_(handle) {}

  std::unique_ptr<soxr, Deleter> handle_;
};

}  // namespace mstar
