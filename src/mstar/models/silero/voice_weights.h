// The weights of voice activity, for models that pass over silence and for the model of its own.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "mstar/base/result.h"
#include "mstar/media/voice_network.h"
#include "mstar/weights/checkpoint.h"

namespace mstar::models {

// bad_model names the array that is missing or of another length.
Result<std::shared_ptr<const VoiceNetwork>> read_voice_network(const weights::Checkpoint& checkpoint);

// Read when somebody first asks. Thread: any.
class VoiceWeights {
 public:
  explicit VoiceWeights(std::filesystem::path directory) : directory_(std::move(directory)) {}
  // invalid_request with field "vad_filter" where they are missing or damaged, which says what to do; looks again the
  // next time.
  Result<std::shared_ptr<const VoiceNetwork>> get() const;

 private:
  const std::filesystem::path directory_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const VoiceNetwork> network_;  // guarded by mutex_
};

}  // namespace mstar::models
