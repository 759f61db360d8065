#include "mstar/ops/linear/linear_library.h"

#include <bit>
#include <cstring>
#include <string>

#include "mstar/base/check.h"
#include "mstar/ops/linear/cublas_lt.h"
#include "mstar/ops/linear/linear_table.h"

namespace mstar {
namespace {

// There is a LinearLibrary, so it is loaded.
const CublasLt& lt() {
  static const CublasLt& loaded = []() -> const CublasLt& {
    const auto found = CublasLt::load();
    MSTAR_CHECK(found, "cuBLASLt is called before it is loaded");
    return **found;
  }();
  return loaded;
}

Status status_of(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return internal_error(std::string(call) + ": " + lt().status_name(status));
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// The library's matrices are column-major: it makes y^T [N, M] = W [N, K] x^T [K, M], both read along K.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, residual, out;

  Status set(const LibraryCall& call) {
    const LibraryShape& s = call.shape;
    const auto m = static_cast<std::uint64_t>(s.m), n = static_cast<std::uint64_t>(s.n),
               k = static_cast<std::uint64_t>(s.k);
    // Full f32 products of f32 matrices: no TF32.
    MSTAR_TRY(status_of(lt().init_operation(&operation, sizeof(operation), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                        "cublasLtMatmulDescInit"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    MSTAR_TRY(set_operation(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    if (s.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      MSTAR_TRY(set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
      const void* bias = call.bias;
      MSTAR_TRY(set_operation(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    }
    MSTAR_TRY(set_layout(weight, s.in, k, n, s.k));
    MSTAR_TRY(set_layout(x, s.in, k, m, call.x_stride));
    MSTAR_TRY(set_layout(out, s.out, n, m, call.out_stride));
    return set_layout(residual, s.out, n, m, s.residual ? call.residual_stride : call.out_stride);
  }

 private:
  template <class Value>
  Status set_operation(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    return status_of(lt().set_operation(&operation, attribute, &value, sizeof(value)),
                     "cublasLtMatmulDescSetAttribute");
  }
  static Status set_layout(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, std::uint64_t rows, std::uint64_t columns,
                           std::int64_t stride) {
    return status_of(lt().init_layout(&layout, sizeof(layout), type_of(dtype), rows, columns, stride),
                     "cublasLtMatrixLayoutInit");
  }
};

template <class Value>
Status set_preference(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                      Value value) {
  return status_of(lt().set_preference(&preference, attribute, &value, sizeof(value)),
                   "cublasLtMatmulPreferenceSetAttribute");
}

Status set_preferences(cublasLtMatmulPreferenceOpaque_t& preference) {
  MSTAR_TRY(status_of(lt().init_preference(&preference, sizeof(preference)), "cublasLtMatmulPreferenceInit"));
  MSTAR_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                           std::uint64_t{LinearLibrary::kWorkspaceBytes}));
  // Parts of K are added in f32 and in one order.
  MSTAR_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    MSTAR_TRY(set_preference(preference, operand, std::uint32_t{16}));
  return ok_status();
}

}  // namespace

LinearLibrary::LinearLibrary(cublasLtHandle_t handle) : handle_(handle), version_(lt().version()) {}

LinearLibrary::~LinearLibrary() { lt().destroy(handle_); }

Result<std::unique_ptr<CudaAttachment>> LinearLibrary::make() {
  MSTAR_TRY(CublasLt::load());
  cublasLtHandle_t handle = nullptr;
  MSTAR_TRY(status_of(lt().create(&handle), "cublasLtCreate"));
  return std::unique_ptr<CudaAttachment>(new LinearLibrary(handle));
}

Result<LinearLibrary*> LinearLibrary::of(Device& device) {
  static const char kKind = 0;
  MSTAR_TRY_ASSIGN(CudaAttachment* const own, cuda_attachment(device, &kKind, make));
  return static_cast<LinearLibrary*>(own);
}

std::int64_t LinearLibrary::rows_class(std::int64_t m) {
  const auto rows = static_cast<std::uint64_t>(m < 1 ? 1 : m);
  const std::uint64_t step = std::bit_floor(rows) / 4;
  if (step == 0) return static_cast<std::int64_t>(std::bit_ceil(rows));
  return static_cast<std::int64_t>((rows + step - 1) / step * step);
}

Result<std::vector<cublasLtMatmulAlgo_t>> LinearLibrary::propose(const LibraryCall& call, int limit) {
  Descriptors descriptors;
  MSTAR_TRY(descriptors.set(call));
  cublasLtMatmulPreferenceOpaque_t preference;
  MSTAR_TRY(set_preferences(preference));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(limit));
  int count = 0;
  MSTAR_TRY(status_of(lt().propose(handle_, &descriptors.operation, &descriptors.weight, &descriptors.x,
                                   &descriptors.residual, &descriptors.out, &preference, limit, results.data(), &count),
                      "cublasLtMatmulAlgoGetHeuristic"));
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) out.push_back(result.algo);
  }
  return out;
}

Result<cublasLtMatmulAlgo_t> LinearLibrary::algorithm(const LibraryCall& call) {
  LibraryCall typical = call;
  typical.shape.m = rows_class(call.shape.m);
  const std::lock_guard lock(mutex_);
  if (const auto found = chosen_.find(typical.shape); found != chosen_.end()) return found->second;
  std::optional<cublasLtMatmulAlgo_t> algorithm = measured(call);
  if (!algorithm) {
    MSTAR_TRY_ASSIGN(const auto proposed, propose(typical, 4));
    if (proposed.empty())
      return internal_error("cuBLASLt has no algorithm for a product of " + std::to_string(call.shape.m) + " x " +
                            std::to_string(call.shape.n) + " x " + std::to_string(call.shape.k));
    algorithm = proposed.front();
  }
  chosen_.emplace(typical.shape, *algorithm);
  return *algorithm;
}

std::optional<cublasLtMatmulAlgo_t> LinearLibrary::measured(const LibraryCall& call) {
  const LibraryShape& s = call.shape;
  const LinearChoice* const choice = linear_choice(s.m, s.n, s.k, s.in, s.out);
  Descriptors descriptors;
  if (!choice || choice->streams() || !descriptors.set(call)) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(choice->algorithm));
  std::memcpy(algorithm.data, choice->algorithm.data(), sizeof(algorithm.data));
  // The table was made with another epilogue perhaps.
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t checked = lt().check(handle_, &descriptors.operation, &descriptors.weight, &descriptors.x,
                                            &descriptors.residual, &descriptors.out, &algorithm, &result);
  if (checked != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return std::nullopt;
  return algorithm;
}

Status LinearLibrary::run(const LibraryCall& call, const cublasLtMatmulAlgo_t& algorithm, void* stream) {
  Descriptors descriptors;
  MSTAR_TRY(descriptors.set(call));
  const float one = 1.0f, zero = 0.0f;
  const bool adds = call.shape.residual;
  return status_of(
      lt().matmul(handle_, &descriptors.operation, &one, call.weight, &descriptors.weight, call.x, &descriptors.x,
                  adds ? &one : &zero, adds ? call.residual : call.out, &descriptors.residual, call.out,
                  &descriptors.out, &algorithm, call.workspace, kWorkspaceBytes, static_cast<cudaStream_t>(stream)),
      "cublasLtMatmul");
}

}  // namespace mstar
