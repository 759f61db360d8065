// A profile's timeline as Chrome's trace events: a process a rank, its host's phases as one thread, its steps in
// flight, which may overlap, as asynchronous events.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "profile_report.h"

namespace mstar::apps {
namespace {

constexpr int kHostThread = 1;

class TraceText {
 public:
  explicit TraceText(std::int64_t begin_ns) : begin_ns_(begin_ns) {}
  void name(std::size_t rank) {
    add(fmt::format(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}})", rank));
    add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"step loop"}}}})", rank,
                    kHostThread));
  }
  void add_phase(std::size_t rank, const PhaseSpan& span) {
    add(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f}}})", rank, kHostThread,
                    phase_name(span.phase), us(span.begin_ns - begin_ns_), us(span.end_ns - span.begin_ns)));
  }
  void add_flight(std::size_t rank, const PhaseSpan& span, const std::string& component) {
    const std::string name =
        nlohmann::json(fmt::format("{}: {} of {} rows", component, step_kind_name(span.kind), span.rows))
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    ++num_flights_;
    for (const bool begins : {true, false})
      add(fmt::format(R"({{"ph":"{}","cat":"step","id":{},"pid":{},"tid":{},"name":{},"ts":{:.3f}}})",
                      begins ? 'b' : 'e', num_flights_, rank, kHostThread, name,
                      us((begins ? span.begin_ns : span.end_ns) - begin_ns_)));
  }
  std::string take() { return R"({"displayTimeUnit":"ms","traceEvents":[)" + text_ + "\n]}\n"; }

 private:
  static double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }
  void add(const std::string& event) {
    if (!text_.empty()) text_ += ',';
    text_ += '\n';
    text_ += event;
  }
  const std::int64_t begin_ns_;
  std::int64_t num_flights_ = 0;
  std::string text_;
};

}  // namespace

std::string profile_trace(const std::vector<const StepProfile*>& by_rank) {
  std::vector<std::vector<PhaseSpan>> spans;
  std::int64_t begin_ns = 0;
  bool any = false;
  for (const StepProfile* each : by_rank)
    for (const PhaseSpan& span : spans.emplace_back(each->spans())) {
      begin_ns = any ? std::min(begin_ns, span.begin_ns) : span.begin_ns;
      any = true;
    }
  TraceText text(begin_ns);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    text.name(rank);
    for (const PhaseSpan& span : spans[rank]) {
      if (span.is_flight) {
        text.add_flight(rank, span, by_rank[rank]->component_name(span.component));
      } else {
        text.add_phase(rank, span);
      }
    }
  }
  return text.take();
}

}  // namespace mstar::apps
