// What the audio tests share: tones, files of every format written by libsndfile in memory, and whole reads.
#pragma once

#include <gtest/gtest.h>
#include <sndfile.h>

#include <cmath>
#include <complex>
#include <fstream>
#include <iterator>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "mstar/media/audio_source.h"

namespace mstar::media_test {

// `amplitude` * sin(2 pi hz t), the same in every channel, interleaved.
inline std::vector<float> tone(double hz, double amplitude, std::size_t num_frames, unsigned rate_hz,
                               unsigned num_channels = 1) {
  std::vector<float> out;
  out.reserve(num_frames * num_channels);
  for (std::size_t i = 0; i < num_frames; ++i) {
    const double phase = 2 * std::numbers::pi * hz * static_cast<double>(i) / rate_hz;
    out.insert(out.end(), num_channels, static_cast<float>(amplitude * std::sin(phase)));
  }
  return out;
}

// The amplitude of the `hz` component of `samples`, over whole periods.
inline double level_at(std::span<const float> samples, double hz, double rate_hz) {
  std::complex<double> sum = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    sum += std::polar(static_cast<double>(samples[i]), -2 * std::numbers::pi * hz * static_cast<double>(i) / rate_hz);
  }
  return 2 * std::abs(sum) / static_cast<double>(samples.size());
}

inline double rms(std::span<const float> samples) {
  double sum = 0;
  for (const float s : samples) sum += static_cast<double>(s) * s;
  return std::sqrt(sum / static_cast<double>(samples.size()));
}

struct MemoryFile {
  std::string bytes;
  sf_count_t at = 0;
};

inline SF_VIRTUAL_IO memory_io() {
  SF_VIRTUAL_IO io = {};
  io.get_filelen = [](void* u) { return static_cast<sf_count_t>(static_cast<MemoryFile*>(u)->bytes.size()); };
  io.tell = [](void* u) { return static_cast<MemoryFile*>(u)->at; };
  io.seek = [](sf_count_t offset, int whence, void* u) {
    auto& f = *static_cast<MemoryFile*>(u);
    const auto size = static_cast<sf_count_t>(f.bytes.size());
    return f.at = offset + (whence == SEEK_CUR ? f.at : whence == SEEK_END ? size : 0);
  };
  io.read = [](void*, sf_count_t, void*) { return sf_count_t{0}; };
  io.write = [](const void* data, sf_count_t count, void* u) {
    auto& f = *static_cast<MemoryFile*>(u);
    const auto end = static_cast<std::size_t>(f.at + count);
    if (f.bytes.size() < end) f.bytes.resize(end);
    f.bytes.replace(static_cast<std::size_t>(f.at), static_cast<std::size_t>(count), static_cast<const char*>(data),
                    static_cast<std::size_t>(count));
    f.at += count;
    return count;
  };
  return io;
}

// A whole file in `format` (SF_FORMAT_...); empty if this libsndfile can't write it.
inline std::string write_audio(int format, const std::vector<float>& interleaved, int rate_hz, int num_channels = 1) {
  SF_INFO wanted = {};
  wanted.samplerate = rate_hz;
  wanted.channels = num_channels;
  wanted.format = format;
  MemoryFile file;
  SF_VIRTUAL_IO io = memory_io();
  SNDFILE* out = sf_open_virtual(&io, SFM_WRITE, &wanted, &file);
  if (!out) return {};
  sf_command(out, SFC_SET_CLIPPING, nullptr, SF_TRUE);
  // Small pieces: libsndfile's Vorbis encoder overflows its stack on one large write.
  const auto num_frames = static_cast<sf_count_t>(interleaved.size()) / num_channels;
  for (sf_count_t at = 0; at < num_frames; at += 1024) {
    sf_writef_float(out, interleaved.data() + at * num_channels, std::min<sf_count_t>(1024, num_frames - at));
  }
  sf_close(out);
  return std::move(file.bytes);
}

inline Result<AudioSource> open_bytes(std::string bytes, std::uint32_t rate_hz = 16000) {
  return AudioSource::open(std::make_shared<const std::string>(std::move(bytes)), rate_hz);
}

// Every sample, read in pieces of the given size.
inline Result<std::vector<float>> read_all(AudioSource& source, std::size_t piece = 65536) {
  std::vector<float> out;
  std::vector<float> buffer(piece);
  while (true) {
    MSTAR_TRY_ASSIGN(const std::size_t got, source.read(buffer));
    if (got == 0) return out;
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(got));
  }
}

inline Result<std::vector<float>> decode(std::string bytes, std::uint32_t rate_hz = 16000) {
  MSTAR_TRY_ASSIGN(AudioSource source, open_bytes(std::move(bytes), rate_hz));
  return read_all(source);
}

inline std::string message(const Status& status) { return status ? "no error" : status.error().message; }
template <class T>
std::string message(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline std::string fixture(const std::string& name) {
  return read_file(std::string(MSTAR_SOURCE_DIR) + "/tests/data/audio/" + name);
}

// Overwrites `size` bytes at `offset` with `value`, little-endian.
inline std::string patched(std::string bytes, std::size_t offset, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.at(offset + i) = static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

}  // namespace mstar::media_test
