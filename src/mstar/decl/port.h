// Ports: every tensor that crosses a component, with its dtype, named axes and how it travels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "mstar/base/dtype.h"
#include "mstar/decl/refs.h"

namespace mstar::decl {

enum class Modality : std::uint8_t { text, image, video, audio, action, scalar, tensor, video_frame };
std::string_view modality_name(Modality modality);
std::optional<Modality> modality_from_name(std::string_view name);

// How many items of a stream make one chunk for its consumer. An item is one Value of the port, whatever its shape (a
// component that publishes a list of n values publishes n items).
// When the producer is done, what is left is flushed as exactly one final chunk, empty if nothing is left. With
// `continue_after_done` there is no final chunk: the consumer gets empty chunks for ever and ends by its own stop.
struct FixedChunks {
  int items = 1;
  bool continue_after_done = false;
};
struct SlidingWindow {  // ready at `window` items; gives them all and drops the first `stride`
  int window = 1;
  int stride = 1;
};
struct LeftContext {  // new items with up to `context` items before them, seen again
  int items = 1;
  int context = 0;
  std::vector<int> ramp;  // sizes of the first chunks, for early output; then `items`
};
using ChunkPolicy = std::variant<FixedChunks, SlidingWindow, LeftContext>;

// The value waits at the workers that may read it in a later walk; the latest value wins.
struct Keep {};
// Every value goes to a partition that runs by itself.
struct Stream {
  std::string to;  // partition name
  ChunkPolicy chunks = FixedChunks{};
};
// The value leaves as a chunk of the answer.
struct ToClient {
  Modality modality = Modality::text;
  std::string format;  // of the bytes: "utf8", "png", "pcm16", "f32", ...; empty = the port's dtype as it is
};
// The value comes with the request (from a surface's intake).
struct FromRequest {
  bool optional = false;  // absent values arrive as signals
};
// Values that arrive while the request runs, cut as a stream.
struct FromClient {
  Modality modality = Modality::audio;
  ChunkPolicy chunks = FixedChunks{};
};
// The partition's plan may give the value (NextWalk::inputs); that wins over a kept one.
struct FromPlan {};
using Travel = std::variant<Keep, Stream, ToClient, FromRequest, FromClient, FromPlan>;

struct Axis {
  std::string name;
  std::int64_t size = -1;  // -1: varies per value; equal names have equal sizes within one value's walk
};

// A value travels by its port's rules each time a Run names the port as an output. Where a Loop exports the port
// (outputs or accumulated), it travels only when that loop ends, never per iteration.
struct PortSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<Axis> axes = {};
  std::vector<Travel> travel = {};
  std::optional<int> shard_axis = {};  // split over TP/SP ranks along this axis; else replicated
  bool counts_token = false;           // each item of a value counts against max_tokens and in usage
};

}  // namespace mstar::decl
