// Units of rows for kernels that wait for memory: loads that do not wait for one another, stores of 16 bytes.
#pragma once

#include "mstar/ops/cuda_rows.cuh"

namespace mstar::cuda {

// A unit of a row, as it is stored until it is asked for, so that loads do not wait for one another. kWhole: every row
// begins on 16 bytes and is a multiple of units.
template <class T, bool kWhole>
class Unit {
 public:
  __device__ void load(const T* from, int left) {
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      words_[w] = left > 0 ? reinterpret_cast<const uint4*>(from)[w] : make_uint4(0, 0, 0, 0);
  }
  __device__ void get(float (&to)[kUnit]) const {
    T values[kUnit];
    memcpy(values, words_, sizeof(values));
#pragma unroll
    for (int i = 0; i < kUnit; ++i) to[i] = widen(values[i]);
  }

 private:
  static constexpr int kWords = kUnit * static_cast<int>(sizeof(T)) / 16;
  uint4 words_[kWords];
};
template <class T>
class Unit<T, false> {
 public:
  __device__ void load(const T* from, int left) { load_unit(from, left, false, values_); }
  __device__ void get(float (&to)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) to[i] = values_[i];
  }

 private:
  float values_[kUnit];
};

// A unit to global memory, rounded once. Written plainly, the compiler makes four stores of some of its groups of 16
// bytes.
template <class T>
__device__ inline void store_whole(const float (&from)[kUnit], T* to) {
  constexpr int kWords = kUnit * static_cast<int>(sizeof(T)) / 16;
  T values[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) values[i] = narrow<T>(from[i]);
  uint4 words[kWords];
  memcpy(words, values, sizeof(words));
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    asm volatile(
        "st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(reinterpret_cast<uint4*>(to) + w)),
        "r"(words[w].x), "r"(words[w].y), "r"(words[w].z), "r"(words[w].w)
        : "memory");
}

// silu of a number that is T or becomes T: for 16 bits the approximate exponential and quotient are exact enough, and a
// fifth of the instructions.
template <class T>
__device__ inline float silu_of(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(x, 1.0f + __expf(-x));
  return activate_one(Activation::silu, x);
}

}  // namespace mstar::cuda
