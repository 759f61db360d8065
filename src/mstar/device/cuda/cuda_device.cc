#include "mstar/device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "mstar/base/check.h"
#include "mstar/device/cuda/cuda_check.h"
#include "mstar/device/cuda/nvtx_marker.h"

namespace mstar {
namespace {

std::string text_of(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

// Errors of the call that returned them. Any other one is of earlier work and stays with the process.
bool is_of_this_call(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorGraphExecUpdateFailure:
      return true;
    default:
      return false;
  }
}

// The error as a value, if it is this call's own.
Status status_of(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return ok_status();
  cudaGetLastError();  // forgets it
  if (!is_of_this_call(error)) check_cuda(error, call);
  return internal_error(std::string(call) + ": " + text_of(error));
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event, bool timed) : event_(event), timed_(timed) {}
  ~CudaEvent() override { check_cuda(cudaEventDestroy(event_), "cudaEventDestroy"); }
  void record(Stream stream) override { check_cuda(cudaEventRecord(event_, native(stream)), "cudaEventRecord"); }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  bool reached() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "cudaEventQuery");
    return true;
  }
  void wait_on(Stream stream) override {
    check_cuda(cudaStreamWaitEvent(native(stream), event_, 0), "cudaStreamWaitEvent");
  }
  double us_since(const Event& earlier) const override {
    const auto& other = static_cast<const CudaEvent&>(earlier);
    if (!timed_ || !other.timed_) return 0;
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, other.event_, event_), "cudaEventElapsedTime");
    return ms * 1e3;
  }

 private:
  cudaEvent_t event_;
  bool timed_;
};

class CudaGraph final : public CapturedGraph {
 public:
  CudaGraph(cudaGraph_t graph, cudaGraphExec_t executable, std::size_t num_nodes)
      : graph_(graph), executable_(executable), num_nodes_(num_nodes) {}
  ~CudaGraph() override {
    check_cuda(cudaGraphExecDestroy(executable_), "cudaGraphExecDestroy");
    check_cuda(cudaGraphDestroy(graph_), "cudaGraphDestroy");
  }
  Status launch(Stream stream) override {
    return status_of(cudaGraphLaunch(executable_, native(stream)), "cudaGraphLaunch");
  }
  std::size_t num_nodes() const override { return num_nodes_; }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t executable_;
  std::size_t num_nodes_;
};

class CudaDevice final : public Device {
 public:
  struct Streams {
    cudaStream_t steps = nullptr, upload = nullptr, readback = nullptr;
  };
  CudaDevice(int index, const Streams& streams, const cudaDeviceProp& properties)
      : index_(index), streams_(streams), properties_(properties) {}
  ~CudaDevice() override {
    make_current();
    attachments_.clear();
    for (const cudaStream_t each : {streams_.upload, streams_.readback, streams_.steps})
      check_cuda(cudaStreamDestroy(each), "cudaStreamDestroy");
  }

  DeviceId id() const override { return {Backend::cuda, index_}; }
  std::string description() const override {
    return std::string(properties_.name) + ", compute " + std::to_string(properties_.major) + "." +
           std::to_string(properties_.minor) + ", " + std::to_string(properties_.multiProcessorCount) +
           " multiprocessors, " + std::to_string(properties_.totalGlobalMem >> 20) + " MiB";
  }
  std::size_t total_bytes() const override { return properties_.totalGlobalMem; }

  Result<void*> allocate(std::size_t bytes) override {
    return take(bytes, "device", [](void** to, std::size_t n) { return cudaMalloc(to, n); });
  }
  void release(void* pointer) override {
    make_current();
    check_cuda(cudaFree(pointer), "cudaFree");
  }
  Result<void*> allocate_host(std::size_t bytes) override {
    return take(bytes, "pinned host",
                [](void** to, std::size_t n) { return cudaHostAlloc(to, n, cudaHostAllocDefault); });
  }
  void release_host(void* pointer) override {
    make_current();
    check_cuda(cudaFreeHost(pointer), "cudaFreeHost");
  }
  std::int64_t num_allocations() const override { return num_allocations_.load(std::memory_order_relaxed); }

  Stream default_stream() override {
    make_current();
    return {streams_.steps};
  }
  Stream upload_stream() override { return {streams_.upload}; }
  Stream readback_stream() override { return {streams_.readback}; }
  Result<std::unique_ptr<Event>> make_event(bool timed) override {
    make_current();
    cudaEvent_t event = nullptr;
    MSTAR_TRY(status_of(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
                        "cudaEventCreateWithFlags"));
    return std::unique_ptr<Event>(new CudaEvent(event, timed));
  }

  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  void copy_within(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  void fill_zero(void* to, std::size_t bytes, Stream stream) override {
    make_current();
    if (bytes) check_cuda(cudaMemsetAsync(to, 0, bytes, native(stream)), "cudaMemsetAsync");
  }
  void synchronize(Stream stream) override {
    make_current();
    check_cuda(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize");
  }

  bool is_asynchronous() const override { return true; }
  bool supports_capture() const override { return true; }
  Status begin_capture(Stream stream) override {
    make_current();
    MSTAR_TRY(
        status_of(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    capturing_.store(true);
    return ok_status();
  }
  Result<std::unique_ptr<CapturedGraph>> end_capture(Stream stream) override {
    make_current();
    capturing_.store(false);
    cudaGraph_t graph = nullptr;
    MSTAR_TRY(status_of(cudaStreamEndCapture(native(stream), &graph), "cudaStreamEndCapture"));
    std::size_t num_nodes = 0;
    cudaGraphExec_t executable = nullptr;
    Status made = status_of(cudaGraphGetNodes(graph, nullptr, &num_nodes), "cudaGraphGetNodes");
    if (made) made = status_of(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    if (!made) {
      check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
      return made.error();
    }
    auto out = std::unique_ptr<CapturedGraph>(new CudaGraph(graph, executable, num_nodes));
    // So that the first replay costs what the others cost.
    MSTAR_TRY(status_of(cudaGraphUpload(executable, native(stream)), "cudaGraphUpload"));
    return out;
  }

  RangeMarker* range_marker() override { return &marker_; }

  Result<CudaAttachment*> attachment(const void* kind, Result<std::unique_ptr<CudaAttachment>> (*make)()) {
    const std::lock_guard lock(attachments_mutex_);
    std::unique_ptr<CudaAttachment>& found = attachments_[kind];
    if (!found) {
      make_current();
      MSTAR_TRY_ASSIGN(found, make());
    }
    return found.get();
  }

 private:
  void make_current() const {
    thread_local int current = -1;
    if (current == index_) return;
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    current = index_;
  }
  template <class Call>
  Result<void*> take(std::size_t bytes, const char* kind, Call call) {
    if (capturing_.load()) return internal_error("memory was asked for while a graph was being captured");
    make_current();
    void* pointer = nullptr;
    const cudaError_t error = call(&pointer, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return exhausted("no " + std::string(kind) + " memory for " + std::to_string(bytes) +
                       " bytes; lower --memory or the limits in the config");
    }
    MSTAR_TRY(status_of(error, "cudaMalloc"));
    num_allocations_.fetch_add(1, std::memory_order_relaxed);
    return pointer;
  }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, Stream stream) {
    make_current();
    if (bytes) check_cuda(cudaMemcpyAsync(to, from, bytes, kind, native(stream)), "cudaMemcpyAsync");
  }

  int index_;
  Streams streams_;
  cudaDeviceProp properties_;
  NvtxMarker marker_;
  std::atomic<std::int64_t> num_allocations_{0};
  std::atomic<bool> capturing_{false};
  std::mutex attachments_mutex_;
  std::map<const void*, std::unique_ptr<CudaAttachment>> attachments_;
};

}  // namespace

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  const std::string note = std::string(call) + ": " + text_of(error);
  MSTAR_CHECK(error == cudaSuccess, note);
}

Status cuda_launch_status(const char* op) { return status_of(cudaGetLastError(), op); }

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Result<std::size_t> cuda_device_bytes(int index) {
  cudaDeviceProp properties{};
  MSTAR_TRY(status_of(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  return properties.totalGlobalMem;
}

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return unavailable("no CUDA device can be used: " + text_of(error));
  }
  if (index < 0 || index >= count)
    return unavailable("there is no CUDA device " + std::to_string(index) + "; this process sees " +
                       std::to_string(count));
  cudaDeviceProp properties{};
  CudaDevice::Streams streams;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess && properties.major != 9)
    return unavailable("CUDA device " + std::to_string(index) + " (" + properties.name + ") has compute capability " +
                       std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                       "; the kernels of this build are for 9.0");
  for (cudaStream_t* const each : {&streams.steps, &streams.upload, &streams.readback})
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(each, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return unavailable("CUDA device " + std::to_string(index) + " cannot be used: " + text_of(error));
  }
  return std::unique_ptr<Device>(new CudaDevice(index, streams, properties));
}

Result<CudaAttachment*> cuda_attachment(Device& device, const void* kind,
                                        Result<std::unique_ptr<CudaAttachment>> (*make)()) {
  MSTAR_CHECK(device.id().backend == Backend::cuda);
  return static_cast<CudaDevice&>(device).attachment(kind, make);
}

}  // namespace mstar
