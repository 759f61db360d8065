// Sample-rate conversion of mono audio as a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mstar {

// A bank of Kaiser-windowed sinc filters, one a phase, with the parameters and the edges of FFmpeg's libswresample at
// its defaults (32 taps times the factor of decimation, cut off at 0.97 of the lower Nyquist rate, beta 9; 1024 phases
// at most, interpolated linearly where the ratio needs more; mirrored at both ends): what the reference pipelines of
// speech models hear. See docs/adr/0012-resampling.md. Output sample 0 is input sample 0.
//
// One thread; holds a few thousand samples and the bank (floats: taps x phases; 59 KB from 44100 to 16000 Hz). The same
// input gives the same bits in pieces of any size.
class Resampler {
 public:
  // Rates in Hz, both > 0. Cost: one evaluation of the window a tap and phase (1 ms from 44100 to 16000 Hz; at most
  // 0.2 s from 768 kHz to 16 kHz).
  Resampler(std::uint32_t from_hz, std::uint32_t to_hz);

  struct Progress {
    std::size_t num_consumed = 0;  // samples of `in` taken; offer the rest again
    std::size_t num_produced = 0;  // samples written to `out`
  };
  // Finite samples in. With a non-empty `in` and `out` one of the two numbers is not 0.
  Progress push(std::span<const float> in, std::span<float> out);
  // After the last push: writes what is still held back; repeat until it returns 0.
  std::size_t finish(std::span<float> out);

 private:
  void make_bank(double factor);
  std::size_t produce(std::span<float> out);
  std::size_t num_held() const { return held_.size() - start_; }
  void mirror_start();
  void mirror_end();

  std::int64_t num_phases_ = 0;
  std::size_t num_taps_ = 0;
  std::size_t stride_ = 0;   // taps with zeros up to whole registers
  std::size_t center_ = 0;   // the tap at an output's own place, for phase 0
  std::vector<float> bank_;  // [num_phases_ + 1, stride_]

  // From one output to the next: phases, and a part of a phase in 1 / to_hz_.
  std::int64_t step_phases_ = 0;
  std::int64_t step_rest_ = 0;
  std::int64_t to_hz_;
  std::int64_t phase_ = 0;
  std::int64_t rest_ = 0;

  std::vector<float> held_;
  std::size_t start_ = 0;  // of the next output's window in held_; may lie past its end
  bool begun_ = false;     // the start was mirrored
  bool ended_ = false;
};

}  // namespace mstar
