#include "mstar/media/resampler.h"

#include <soxr.h>

#include <string>

namespace mstar {

void Resampler::Deleter::operator()(soxr* p) const { soxr_delete(p); }

Result<Resampler> Resampler::create(double from_hz, double to_hz) {
  soxr_error_t error = nullptr;
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  soxr* handle = soxr_create(from_hz, to_hz, 1, &error, &io, &quality, &runtime);
  if (error || !handle) {
    if (handle) soxr_delete(handle);
    return internal_error(std::string("libsoxr: ") + soxr_strerror(error));
  }
  return Resampler(handle);
}

Result<Resampler::Progress> Resampler::push(std::span<const float> in, std::span<float> out) {
  Progress progress;
  if (in.empty()) return progress;
  const soxr_error_t error = soxr_process(handle_.get(), in.data(), in.size(), &progress.num_consumed, out.data(),
                                          out.size(), &progress.num_produced);
  if (error) return internal_error(std::string("libsoxr: ") + soxr_strerror(error));
  return progress;
}

Result<std::size_t> Resampler::finish(std::span<float> out) {
  std::size_t num_produced = 0;
  const soxr_error_t error = soxr_process(handle_.get(), nullptr, 0, nullptr, out.data(), out.size(), &num_produced);
  if (error) return internal_error(std::string("libsoxr: ") + soxr_strerror(error));
  return num_produced;
}

}  // namespace mstar
