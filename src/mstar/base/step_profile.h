// Where the time of a step loop goes: named phases of the host, step by step, and which of it no step in flight hid.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace mstar {

// What the thread of a step loop does. A phase inside another takes its time out of it, so that those of a step add up
// to the time between its end and the end of the step before it.
enum class Phase : std::uint8_t {
  idle,       // nothing to do: waits for messages
  messages,   // takes what was sent to the worker: requests, signals, results of host components
  schedule,   // chooses what runs next, and its rows
  admit,      // asks the rows what they need, and the resources whether they have it
  plan,       // leases a graph; the resources' tables for the step, and their upload
  gather,     // the rows' inputs into the step's, and their upload; memory for outputs
  forward,    // launches the forward kernel by kernel; on a CPU the forward itself
  replay,     // launches a captured graph
  read_back,  // launches the copy of what the host reads of a step
  promise,    // the launched step's outputs, and the rows that they feed
  wait,       // until the device has finished the step
  commit,     // the resources keep or take back what the rows made
  collect,    // the rows' outputs as values of the host
  route,      // outputs along the walk: stops, signals, what becomes ready; and the end of a step itself
  tell,       // messages to the conductor
  statistics,
  other
};
inline constexpr std::size_t kNumPhases = static_cast<std::size_t>(Phase::other) + 1;
const char* phase_name(Phase phase);

// How a step ran. A prompt brings more tokens than rows; it is counted apart because it takes far longer.
enum class StepKind : std::uint8_t { replay, eager, prompt };
inline constexpr std::size_t kNumStepKinds = 3;
const char* step_kind_name(StepKind kind);

// Steps are told apart by their rows: 1, 2-4, 5-8, 9-16, 17-32, 33-64, more.
inline constexpr std::size_t kNumRowBuckets = 7;
std::size_t row_bucket(int rows);
const char* row_bucket_name(std::size_t bucket);

struct PhaseTime {
  std::int64_t ns = 0;
  // Of these: while the device had nothing to do, as far as the host saw when it next looked (an upper bound). 0 of the
  // phases idle and wait, which are no work.
  std::int64_t exposed_ns = 0;
  std::int32_t count = 0;  // times that it began
};

struct StepRecord {
  int rows = 0;
  std::array<PhaseTime, kNumPhases> phases = {};
  const PhaseTime& at(Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
  std::int64_t step_ns() const;  // without idle
  std::int64_t host_ns() const;  // without idle and wait
  std::int64_t exposed_ns() const;
};

// The last steps of one component, kind and size.
struct StepSeries {
  std::string model, component;
  StepKind kind = StepKind::eager;
  std::size_t bucket = 0;
  std::int64_t num_steps = 0;         // since the start
  std::vector<StepRecord> last = {};  // of them, in no order
};

// A stretch of time, for a timeline.
struct PhaseSpan {
  Phase phase = Phase::other;
  bool is_flight = false;  // no phase, but a step from its launch until it was read
  StepKind kind = StepKind::eager;
  std::uint16_t component = 0;
  int rows = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

// Shows phases to a tool that watches the process (NVTX). Thread: the profile's owner.
class RangeMarker {
 public:
  virtual ~RangeMarker() = default;
  virtual void begin(const char* name) = 0;
  virtual void end() = 0;
};

// One step loop's. It allocates when it is made and by add_component; a phase costs two readings of the clock.
// Thread: the owner of the loop, but for series(), spans() and component_name().
class StepProfile {
 public:
  using NowNs = std::int64_t (*)();
  struct Options {
    std::size_t window_steps = 512;  // that are kept of each component, kind and size
    std::size_t num_spans = 0;       // that are kept for a timeline
    NowNs now_ns = nullptr;          // null: the steady clock
  };
  explicit StepProfile(Options options);

  // Before the loop runs. Returns its number.
  std::size_t add_component(std::string model, std::string component);
  void set_marker(RangeMarker* marker) { marker_ = marker; }

  struct Outer {
    Phase phase = Phase::other;
    std::int64_t begin_ns = 0;  // of the inner one
  };
  // From here on time goes to `phase`; give what is returned to leave().
  Outer enter(Phase phase);
  void leave(const Outer& outer);
  // The host's work since the last look was hidden when the device worked all the while.
  void look(bool device_was_busy);
  std::int64_t now_ns() const { return now_ns_(); }
  // For the timeline: the step was in flight from `launched_ns` until now.
  void add_flight(std::int64_t launched_ns, std::size_t component, StepKind kind, int rows);
  // A step ended: all time since the last end is its own. With a look.
  void end_step(std::size_t component, StepKind kind, int rows, bool device_was_busy);

  // Those that have steps. Thread: any.
  std::vector<StepSeries> series() const;
  // The last ones, oldest first. Thread: any.
  std::vector<PhaseSpan> spans() const;
  // "model/component". Thread: any, once the loop runs.
  std::string component_name(std::size_t component) const;

 private:
  struct Ring {
    std::int64_t num_steps = 0;
    std::vector<StepRecord> records;  // [window_steps], a ring
  };
  struct Component {
    std::string model, name;
    std::array<std::array<Ring, kNumRowBuckets>, kNumStepKinds> rings;
  };
  std::int64_t lap();
  void keep_span(const PhaseSpan& span);

  const std::size_t window_steps_;
  const NowNs now_ns_;
  RangeMarker* marker_ = nullptr;
  Phase current_ = Phase::other;
  std::int64_t mark_ns_ = -1;  // since when time goes to current_; -1: nothing has begun yet
  StepRecord open_;
  std::array<std::int64_t, kNumPhases> unseen_ns_ = {};  // since the last look
  mutable std::mutex mutex_;                             // guards the rest
  std::vector<Component> components_;
  std::vector<PhaseSpan> spans_;  // a ring
  std::uint64_t num_spans_ = 0;   // since the start
};

// The time of a scope; nothing where there is no profile.
class PhaseScope {
 public:
  PhaseScope(StepProfile* profile, Phase phase) : profile_(profile) {
    if (profile_) outer_ = profile_->enter(phase);
  }
  ~PhaseScope() {
    if (profile_) profile_->leave(outer_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  StepProfile* const profile_;
  StepProfile::Outer outer_;
};

}  // namespace mstar
