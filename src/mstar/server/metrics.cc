#include "mstar/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace mstar::server {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      BuildCounter().Name("mstar_http_requests_total").Help("Answered requests by route and status").Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds =
      BuildHistogram()
          .Name("mstar_http_request_seconds")
          .Help("From the end of a request's header to the end of its answer")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& aborted =
      BuildCounter().Name("mstar_http_aborted_total").Help("Requests aborted by reason").Register(registry);
  prometheus::Gauge& connections =
      BuildGauge().Name("mstar_http_connections_open").Help("Open client connections").Register(registry).Add({});
  prometheus::Counter& refused = BuildCounter()
                                     .Name("mstar_http_connections_refused_total")
                                     .Help("Connections over the limit")
                                     .Register(registry)
                                     .Add({});
  prometheus::Gauge& in_flight = BuildGauge()
                                     .Name("mstar_http_calls_in_flight")
                                     .Help("Requests submitted to the runtime and not answered in full")
                                     .Register(registry)
                                     .Add({});
  prometheus::Counter& received_bytes =
      BuildCounter().Name("mstar_http_received_bytes_total").Help("Bytes read from clients").Register(registry).Add({});
  prometheus::Counter& sent_bytes =
      BuildCounter().Name("mstar_http_sent_bytes_total").Help("Bytes written to clients").Register(registry).Add({});
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::request_done(std::string_view route, int status, double seconds) {
  const std::string label(route);
  families_->requests.Add({{"route", label}, {"status", std::to_string(status)}}).Increment();
  families_->seconds
      .Add({{"route", label}},
           prometheus::Histogram::BucketBoundaries{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300})
      .Observe(seconds);
}
void Metrics::request_aborted(std::string_view reason) {
  families_->aborted.Add({{"reason", std::string(reason)}}).Increment();
}
void Metrics::connection_opened() { families_->connections.Increment(); }
void Metrics::connection_closed() { families_->connections.Decrement(); }
void Metrics::connection_refused() { families_->refused.Increment(); }
void Metrics::calls_in_flight(int change) { families_->in_flight.Increment(change); }
void Metrics::received(std::size_t bytes) { families_->received_bytes.Increment(static_cast<double>(bytes)); }
void Metrics::sent(std::size_t bytes) { families_->sent_bytes.Increment(static_cast<double>(bytes)); }

std::string Metrics::text() const { return prometheus::TextSerializer().Serialize(families_->registry.Collect()); }

}  // namespace mstar::server
