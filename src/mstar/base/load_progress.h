// How far this process has come with what it loads.
#pragma once

#include <atomic>
#include <cstdint>

namespace mstar {

inline std::atomic<std::uint64_t> load_progress_steps{0};

// One more piece of loading is done: a tensor, a pool, a captured step. To be called by whoever does it, never by a
// timer: who sees the number stand still for long sees a process that does not get on. Thread: any.
inline void note_load_progress() { load_progress_steps.fetch_add(1, std::memory_order_relaxed); }

// Pieces so far; only grows. Thread: any.
inline std::uint64_t load_progress() { return load_progress_steps.load(std::memory_order_relaxed); }

}  // namespace mstar
