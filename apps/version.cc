// mstar --version: what this binary is, without asking any version control.
#include <string>

#include "commands.h"
#include "mstar/device/cpu/cpu_device.h"
#include "mstar/device/thread_pool.h"
#include "mstar/media/audio_source.h"
#include "mstar/ops/cpu_target.h"

namespace mstar::apps {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

std::string kernels() {
  std::string out;
  for (const CpuTarget each : cpu_targets()) {
    out += out.empty() ? "" : ", ";
    out += cpu_target_name(each);
    if (each == cpu_target()) out += " (in use)";
  }
  return out.empty() ? "the compiler's default target" : out;
}

}  // namespace

std::string version_text() {
  std::string out = "mstar " MSTAR_VERSION "\n";
  out += "build:      " + compiler() + ", " MSTAR_BUILD_TYPE;
  if (const std::string sanitizers = MSTAR_SANITIZERS; !sanitizers.empty()) out += ", sanitizers " + sanitizers;
#ifdef MSTAR_CUDA
  out += ", CUDA";
#endif
  out += "\nprocessor:  " + make_cpu_device()->description() + ", " + std::to_string(make_cpu_plan().num_threads) +
         " threads";
  if (const std::string missing = missing_cpu_features(); !missing.empty())
    out += "; lacks " + missing + ", which mstar needs";
  out += "\nkernels:    " + kernels();
  return out + "\naudio:      " + supported_audio_formats();
}

}  // namespace mstar::apps
