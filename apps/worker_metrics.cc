// The runtime's part of /metrics: what each worker did and holds, as Prometheus text.
#include <spdlog/fmt/fmt.h>

#include "runtime.h"

namespace mstar::apps {
namespace {

// As the Prometheus text format wants the value of a label.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// The samples of one metric, under one heading.
struct Metric {
  const char* name;
  std::string text;
  Metric(const char* metric, const char* type, const char* help)
      : name(metric), text(fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", metric, type, help)) {}
  void add(const std::string& labels, std::int64_t value) { text += fmt::format("{}{{{}}} {}\n", name, labels, value); }
};

}  // namespace

std::string Runtime::worker_metrics() const {
  Metric used("mstar_resource_used", "gauge", "Pages, slots or rows in use.");
  Metric total("mstar_resource_total", "gauge", "Pages, slots or rows there are.");
  Metric cached("mstar_cached_pages", "gauge", "Pages that no request uses, kept for prompts that begin as they do.");
  Metric snapshots("mstar_state_snapshots", "gauge", "Recurrent states kept for prompts that begin as theirs did.");
  Metric found("mstar_cached_tokens_total", "counter", "Prompt tokens that a prefix cache held.");
  Metric preempted("mstar_preemptions_total", "counter", "Times that a request's pages were taken for an older one.");
  Metric steps("mstar_steps_total", "counter", "Steps run.");
  Metric rows("mstar_step_rows_total", "counter", "Rows in these steps.");
  Metric replays("mstar_graph_replays_total", "counter", "Steps that were one launch of a captured graph.");
  Metric eager("mstar_eager_steps_total", "counter", "Steps that were launched kernel by kernel.");
  Metric piecewise("mstar_piecewise_steps_total", "counter",
                   "Steps that were graphs of regions, and kernels round them.");
  Metric regions("mstar_region_replays_total", "counter", "Graphs of regions that were launched in these steps.");
  Metric syncs("mstar_host_syncs_total", "counter", "Waits of a step loop for its device.");
  Metric ahead("mstar_rows_ahead_total", "counter", "Rows launched before the step before them was read.");
  Metric dropped("mstar_rows_dropped_total", "counter", "Rows launched, and then not wanted: at most one for a stop.");
  Metric allocations("mstar_step_allocations_total", "counter", "Fresh device buffers that steps took.");
  Metric buffers("mstar_buffer_bytes", "gauge", "Device memory for values between components, used or kept for reuse.");
  Metric weights("mstar_weight_bytes", "gauge", "Of weights in device memory.");
  Metric handed_over("mstar_handed_over_total", "counter", "Device buffers that went straight to other workers.");
  Metric handed_over_bytes("mstar_handed_over_bytes_total", "counter", "Bytes of these.");
  Metric states_in("mstar_state_moves_total", "counter", "Times that a request's state came from another worker.");
  Metric state_bytes("mstar_state_move_bytes_total", "counter", "Bytes of these.");
  Metric state_wait("mstar_state_move_wait_us_total", "counter", "Time that requests waited for it.");
  Metric restarts("mstar_worker_restarts_total", "counter", "Times that a worker's process was started again.");
  for (std::size_t w = 0; w < num_workers(); ++w) {
    const wire::WorkerStats stats = worker_stats(w);
    const std::string worker = fmt::format("worker=\"{}\"", w);
    buffers.add(worker, static_cast<std::int64_t>(stats.buffer_bytes));
    weights.add(worker, static_cast<std::int64_t>(stats.weight_bytes));
    handed_over.add(worker, static_cast<std::int64_t>(stats.num_handed_over));
    handed_over_bytes.add(worker, static_cast<std::int64_t>(stats.handed_over_bytes));
    states_in.add(worker, static_cast<std::int64_t>(stats.num_states_in));
    state_bytes.add(worker, static_cast<std::int64_t>(stats.state_in_bytes));
    state_wait.add(worker, static_cast<std::int64_t>(stats.state_wait_us));
    if (processes_ && w > 0) restarts.add(worker, processes_->num_restarts(WorkerId(static_cast<std::uint32_t>(w))));
    for (const auto& usage : stats.pools) {
      const std::string labels =
          fmt::format("worker=\"{}\",model=\"{}\",resource=\"{}\"", w, label_value(usage.model), usage.name);
      used.add(labels, usage.used);
      total.add(labels, usage.total);
      cached.add(labels, usage.cached);
      snapshots.add(labels, usage.num_snapshots);
      found.add(labels, usage.found_tokens);
      preempted.add(labels, usage.num_preempted);
    }
    for (const auto& counters : stats.components) {
      const std::string labels =
          fmt::format("worker=\"{}\",model=\"{}\",component=\"{}\"", w, label_value(counters.model), counters.name);
      steps.add(labels, counters.num_steps);
      rows.add(labels, counters.num_rows);
      replays.add(labels, counters.num_replays);
      eager.add(labels, counters.num_eager);
      piecewise.add(labels, counters.num_piecewise);
      regions.add(labels, counters.num_region_replays);
      syncs.add(labels, counters.num_host_syncs);
      ahead.add(labels, counters.num_ahead_rows);
      dropped.add(labels, counters.num_dropped_rows);
      allocations.add(labels, counters.num_allocations);
    }
  }
  return used.text + total.text + cached.text + snapshots.text + found.text + preempted.text + steps.text + rows.text +
         replays.text + eager.text + piecewise.text + regions.text + syncs.text + ahead.text + dropped.text +
         allocations.text + buffers.text + weights.text + handed_over.text + handed_over_bytes.text + states_in.text +
         state_bytes.text + state_wait.text + restarts.text;
}

}  // namespace mstar::apps
