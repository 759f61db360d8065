// Arbitrary bytes as an upload: no crash, no leak, only finite samples, and the same result again after rewind().
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "mstar/media/audio_source.h"

namespace {

constexpr std::size_t kMaxSamples = 200000;

// Samples read up to the limit, or the failure as -1.
long long read_some(mstar::AudioSource& source) {
  std::vector<float> buffer(16000);
  std::size_t total = 0;
  while (total < kMaxSamples) {
    const auto got = source.read(buffer);
    if (!got) return -1;
    if (*got == 0) break;
    for (std::size_t i = 0; i < *got; ++i) {
      if (!std::isfinite(buffer[i])) std::abort();
    }
    total += *got;
  }
  return static_cast<long long>(total);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  auto owner = std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes), size);
  auto source = mstar::AudioSource::open(std::move(owner));
  if (!source) return 0;
  const long long first = read_some(*source);
  if (!source->rewind()) std::abort();
  if (read_some(*source) != first) std::abort();
  return 0;
}
