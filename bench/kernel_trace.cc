// A library that the CUDA driver loads into a program (CUDA_INJECTION64_PATH=libkernel_trace.so): it writes every
// kernel, copy and fill of the device with its times to the file that KERNEL_TRACE names, for bench/gpu_timeline.py.
// One line each:
//   kernel BEGIN_NS END_NS BLOCKS THREADS NAME
//   copy BEGIN_NS END_NS BYTES KIND
//   fill BEGIN_NS END_NS BYTES
// in the order in which the driver hands them over, not of time. Kernels of captured graphs are told one by one.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

std::FILE* file = nullptr;

// The template's own names, without its parameters' types.
const std::string& readable(const char* mangled) {
  static std::unordered_map<std::string, std::string> known;
  std::string& out = known[mangled ? mangled : "?"];
  if (!out.empty()) return out;
  int status = 0;
  char* const plain = mangled ? abi::__cxa_demangle(mangled, nullptr, nullptr, &status) : nullptr;
  out = plain ? plain : (mangled ? mangled : "?");
  std::free(plain);
  return out;
}

void write_record(const CUpti_Activity* record) {
  const auto ns = [](std::uint64_t t) { return static_cast<unsigned long long>(t); };
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      std::fprintf(file, "kernel %llu %llu %d %d %s\n", ns(k->start), ns(k->end), k->gridX * k->gridY * k->gridZ,
                   k->blockX * k->blockY * k->blockZ, readable(k->name).c_str());
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      std::fprintf(file, "copy %llu %llu %llu %d\n", ns(m->start), ns(m->end), ns(m->bytes), m->copyKind);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      std::fprintf(file, "fill %llu %llu %llu\n", ns(m->start), ns(m->end), ns(m->bytes));
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) write_record(record);
  std::free(buffer);
}

void flush() {
  cuptiActivityFlushAll(1);
  std::fflush(file);
}

}  // namespace

// The driver's entry; 1: all is well.
extern "C" int InitializeInjection() {
  const char* const path = std::getenv("KERNEL_TRACE");
  file = path ? std::fopen(path, "w") : nullptr;
  if (!file) return 1;
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "kernel_trace: CUPTI cannot run here\n");
    return 1;
  }
  for (const auto kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) std::fprintf(stderr, "kernel_trace: kind %d is refused\n", kind);
  std::atexit(flush);
  return 1;
}
