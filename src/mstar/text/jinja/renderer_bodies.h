// The objects that a rendering makes; private to renderer*.cc.
#pragma once

#include <string>
#include <vector>

#include "mstar/text/jinja/renderer.h"

namespace mstar::jinja {

struct Renderer::MacroBody final : Body {
  const Stmt* stmt = nullptr;
  // The frame that the macro was made in, whose variables it sees.
  std::int32_t frame = 0;
  std::uint64_t frame_serial = 0;
};

struct Renderer::LoopBody final : Body {
  const Stmt* stmt = nullptr;
  std::int32_t outer_frame = -1;
  std::vector<Value> items;    // that the loop walks over, as far as that is known
  std::vector<Value> waiting;  // from next_waiting on: the condition is still to be asked
  std::size_t next_waiting = 0;
  std::size_t index0 = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
};

struct Renderer::MethodBody final : Body {
  Value receiver;
  std::string name;
};

struct Renderer::FunctionBody final : Body {
  explicit FunctionBody(std::string n) : name(std::move(n)) {}
  std::string name;
};

// cycler(...) and joiner(...).
struct Renderer::CyclerBody final : Body {
  std::vector<Value> items;
  std::size_t at = 0;
  bool is_joiner = false;
};

// Counts how deep evaluation is.
class Renderer::Nested {
 public:
  explicit Nested(Renderer& renderer) : renderer_(renderer) { ++renderer_.depth_; }
  ~Nested() { --renderer_.depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  bool too_deep() const { return renderer_.depth_ > kMaxEvalDepth; }

 private:
  static constexpr int kMaxEvalDepth = 300;
  Renderer& renderer_;
};

}  // namespace mstar::jinja
