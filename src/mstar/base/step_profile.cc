#include "mstar/base/step_profile.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mstar {
namespace {

constexpr const char* kPhaseNames[kNumPhases] = {"idle",    "messages", "schedule",  "admit",      "plan", "gather",
                                                 "forward", "replay",   "read_back", "promise",    "wait", "commit",
                                                 "collect", "route",    "tell",      "statistics", "other"};
constexpr const char* kKindNames[kNumStepKinds] = {"replay", "eager", "prompt"};
constexpr int kMostRows[kNumRowBuckets - 1] = {1, 4, 8, 16, 32, 64};
constexpr const char* kBucketNames[kNumRowBuckets] = {"1", "2-4", "5-8", "9-16", "17-32", "33-64", "65+"};

std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_work(std::size_t phase) {
  return phase != static_cast<std::size_t>(Phase::idle) && phase != static_cast<std::size_t>(Phase::wait);
}

}  // namespace

const char* phase_name(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }
const char* step_kind_name(StepKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }
const char* row_bucket_name(std::size_t bucket) { return kBucketNames[bucket]; }

std::size_t row_bucket(int rows) {
  std::size_t bucket = 0;
  while (bucket + 1 < kNumRowBuckets && rows > kMostRows[bucket]) ++bucket;
  return bucket;
}

std::int64_t StepRecord::step_ns() const { return host_ns() + at(Phase::wait).ns; }

std::int64_t StepRecord::host_ns() const {
  std::int64_t out = 0;
  for (std::size_t p = 0; p < kNumPhases; ++p)
    if (is_work(p)) out += phases[p].ns;
  return out;
}

std::int64_t StepRecord::exposed_ns() const {
  std::int64_t out = 0;
  for (const PhaseTime& phase : phases) out += phase.exposed_ns;
  return out;
}

StepProfile::StepProfile(Options options)
    : window_steps_(std::max<std::size_t>(options.window_steps, 1)),
      now_ns_(options.now_ns ? options.now_ns : steady_now_ns),
      spans_(options.num_spans) {}

std::size_t StepProfile::add_component(std::string model, std::string component) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < components_.size(); ++i)
    if (components_[i].model == model && components_[i].name == component) return i;
  Component& made = components_.emplace_back();
  made.model = std::move(model);
  made.name = std::move(component);
  for (auto& of_kind : made.rings)
    for (Ring& ring : of_kind) ring.records.resize(window_steps_);
  return components_.size() - 1;
}

// Gives the time since the last lap to the phase that it was spent in.
std::int64_t StepProfile::lap() {
  const std::int64_t now = now_ns_();
  if (mark_ns_ >= 0) {
    const auto at = static_cast<std::size_t>(current_);
    open_.phases[at].ns += now - mark_ns_;
    unseen_ns_[at] += now - mark_ns_;
  }
  mark_ns_ = now;
  return now;
}

StepProfile::Outer StepProfile::enter(Phase phase) {
  const std::int64_t now = lap();
  if (marker_) marker_->begin(phase_name(phase));
  ++open_.phases[static_cast<std::size_t>(phase)].count;
  return {std::exchange(current_, phase), now};
}

void StepProfile::leave(const Outer& outer) {
  const std::int64_t now = lap();
  if (marker_) marker_->end();
  if (!spans_.empty()) {
    PhaseSpan span;
    span.phase = current_;
    span.begin_ns = outer.begin_ns;
    span.end_ns = now;
    keep_span(span);
  }
  current_ = outer.phase;
}

void StepProfile::keep_span(const PhaseSpan& span) {
  const std::lock_guard lock(mutex_);
  spans_[num_spans_++ % spans_.size()] = span;
}

void StepProfile::look(bool device_was_busy) {
  lap();
  for (std::size_t p = 0; p < kNumPhases; ++p)
    if (is_work(p) && !device_was_busy) open_.phases[p].exposed_ns += unseen_ns_[p];
  unseen_ns_.fill(0);
}

void StepProfile::add_flight(std::int64_t launched_ns, std::size_t component, StepKind kind, int rows) {
  if (spans_.empty()) return;
  PhaseSpan span;
  span.is_flight = true;
  span.kind = kind;
  span.component = static_cast<std::uint16_t>(component);
  span.rows = rows;
  span.begin_ns = launched_ns;
  span.end_ns = now_ns_();
  keep_span(span);
}

void StepProfile::end_step(std::size_t component, StepKind kind, int rows, bool device_was_busy) {
  look(device_was_busy);
  open_.rows = rows;
  {
    const std::lock_guard lock(mutex_);
    Ring& ring = components_[component].rings[static_cast<std::size_t>(kind)][row_bucket(rows)];
    ring.records[static_cast<std::size_t>(ring.num_steps++) % window_steps_] = open_;
  }
  open_ = {};
}

std::vector<StepSeries> StepProfile::series() const {
  std::vector<StepSeries> out;
  const std::lock_guard lock(mutex_);
  for (const Component& component : components_)
    for (std::size_t kind = 0; kind < kNumStepKinds; ++kind)
      for (std::size_t bucket = 0; bucket < kNumRowBuckets; ++bucket) {
        const Ring& ring = component.rings[kind][bucket];
        if (ring.num_steps == 0) continue;
        const auto kept = std::min<std::size_t>(static_cast<std::size_t>(ring.num_steps), window_steps_);
        out.push_back({component.model,
                       component.name,
                       static_cast<StepKind>(kind),
                       bucket,
                       ring.num_steps,
                       {ring.records.begin(), ring.records.begin() + static_cast<std::ptrdiff_t>(kept)}});
      }
  return out;
}

std::vector<PhaseSpan> StepProfile::spans() const {
  std::vector<PhaseSpan> out;
  const std::lock_guard lock(mutex_);
  const std::uint64_t kept = std::min<std::uint64_t>(num_spans_, spans_.size());
  out.reserve(kept);
  for (std::uint64_t i = num_spans_ - kept; i < num_spans_; ++i) out.push_back(spans_[i % spans_.size()]);
  return out;
}

std::string StepProfile::component_name(std::size_t component) const {
  const std::lock_guard lock(mutex_);
  return components_[component].model + "/" + components_[component].name;
}

}  // namespace mstar
