// What `mstar serve` says when it is ready. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "memory_plan.h"
#include "mstar/conductor/frontend.h"

namespace mstar::apps {

// "http://127.0.0.1:8000"; an address that means every interface becomes the loopback one, as a client would name it.
std::string url_of(const std::string& host, std::uint16_t port);

struct Startup {
  MemoryPlan memory;
  std::string device;
  std::vector<ServedModel> models;
  std::string url;
  std::string sample;  // an audio file to try, see find_sample()
};
// The memory plan, the models with their aliases, the URL and three commands that work as they stand.
std::string startup_text(const Startup& startup);

// A speech file on this machine, else "speech.wav".
std::string find_sample();

}  // namespace mstar::apps
