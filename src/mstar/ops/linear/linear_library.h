// cuBLASLt as linear uses it: y [M, N] = x [M, K] W [N, K]^T (+ bias) (+ residual), row-major.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "mstar/base/dtype.h"
#include "mstar/device/cuda/cuda_device.h"

namespace mstar {

// What an algorithm is chosen for.
struct LibraryShape {
  std::int64_t m = 0, n = 0, k = 0;
  DType in = DType::bf16;   // of x and W
  DType out = DType::bf16;  // of y and residual
  bool bias = false, residual = false;
  friend auto operator<=>(const LibraryShape&, const LibraryShape&) = default;
};

// Rows lie `_stride` elements apart and start on 16 bytes.
struct LibraryCall {
  LibraryShape shape;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const void* weight = nullptr;
  const float* bias = nullptr;
  const void* residual = nullptr;
  std::int64_t residual_stride = 0;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  void* workspace = nullptr;  // kWorkspaceBytes on 256 bytes
};

// One handle and the algorithms chosen so far. Thread: any; run() is for the stream's owner.
class LinearLibrary final : public CudaAttachment {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  // The device's own. Errors: internal (the library does not start).
  static Result<LinearLibrary*> of(Device& device);
  ~LinearLibrary() override;
  LinearLibrary(const LinearLibrary&) = delete;
  LinearLibrary& operator=(const LinearLibrary&) = delete;

  // The algorithm for a shape: the committed table's if it names the shape's class for this version of the library,
  // else the first that the library proposes for the class. Host only, about 100 us the first time.
  Result<cublasLtMatmulAlgo_t> algorithm(const LibraryCall& call);
  Status run(const LibraryCall& call, const cublasLtMatmulAlgo_t& algorithm, void* stream);
  // What the library proposes for exactly this call, best first, at most `limit`.
  Result<std::vector<cublasLtMatmulAlgo_t>> propose(const LibraryCall& call, int limit);
  std::size_t version() const { return version_; }

  // Shapes of one class share their algorithm: M is rounded up to 1, 2, 4 or a multiple of a quarter of its octave.
  static std::int64_t rows_class(std::int64_t m);

 private:
  explicit LinearLibrary(cublasLtHandle_t handle);
  static Result<std::unique_ptr<CudaAttachment>> make();
  // The committed table's, if it has one that this call can use.
  std::optional<cublasLtMatmulAlgo_t> measured(const LibraryCall& call);

  cublasLtHandle_t handle_;
  std::size_t version_;
  std::mutex mutex_;
  std::map<LibraryShape, cublasLtMatmulAlgo_t> chosen_;
};

}  // namespace mstar
