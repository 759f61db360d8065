// How long one call of an op takes in a captured step.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "mstar/device/device.h"

namespace mstar::bench {

// Records run(0) .. run(num_calls - 1) as one graph and replays it: the median over replays of the time of one call, in
// microseconds; -1 when a call or the capture fails. Warms up first.
template <class Run>
double median_call_us(Device& cuda, int num_calls, Run run) {
  constexpr int kReplays = 15;
  const Stream stream = cuda.default_stream();
  if (!run(0)) return -1;
  cuda.synchronize(stream);
  if (!cuda.begin_capture(stream)) return -1;
  bool good = true;
  for (int call = 0; call < num_calls; ++call) good &= static_cast<bool>(run(call));
  auto graph = cuda.end_capture(stream);
  auto begin = cuda.make_event(true), end = cuda.make_event(true);
  if (!good || !graph || !begin || !end) return -1;
  std::vector<double> times;
  for (int i = 0; i < kReplays + 3; ++i) {
    (*begin)->record(stream);
    if (!(*graph)->launch(stream)) return -1;
    (*end)->record(stream);
    cuda.synchronize(stream);
    if (i >= 3) times.push_back((*end)->us_since(**begin) / num_calls);
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  return times[kReplays / 2];
}

// Into how many nodes of a graph one call becomes: a library's product that fills or adds up a workspace is several. 0
// when it cannot be captured.
template <class Run>
std::size_t nodes_of_call(Device& cuda, Run run) {
  const Stream stream = cuda.default_stream();
  if (!run(0)) return 0;
  cuda.synchronize(stream);
  if (!cuda.begin_capture(stream)) return 0;
  const bool good = static_cast<bool>(run(0));
  auto graph = cuda.end_capture(stream);
  return good && graph ? (*graph)->num_nodes() : 0;
}

}  // namespace mstar::bench
