#include "mstar/simulator/virtual_device.h"

#include <algorithm>

#include "mstar/device/cpu/cpu_device.h"

namespace mstar::simulator {

class VirtualDevice::Point final : public Event {
 public:
  explicit Point(VirtualDevice& device) : device_(device) {}
  void record(Stream) override { at_ns_ = device_.busy_until_ns_; }
  void wait() override { device_.clock_.wait_until_ns(at_ns_); }
  bool reached() const override { return device_.clock_.now_ns() >= at_ns_; }
  void wait_on(Stream) override {}
  double us_since(const Event& earlier) const override {
    return static_cast<double>(at_ns_ - static_cast<const Point&>(earlier).at_ns_) / 1000;
  }

 private:
  VirtualDevice& device_;
  std::int64_t at_ns_ = 0;
};

VirtualDevice::VirtualDevice(VirtualClock& clock, bool asynchronous)
    : clock_(clock), asynchronous_(asynchronous), host_(make_cpu_device()) {}

Result<std::unique_ptr<Event>> VirtualDevice::make_event(bool) { return std::unique_ptr<Event>(new Point(*this)); }

void VirtualDevice::run_step(const models::StepCosts& costs, const models::StepShape& shape) {
  clock_.spend_us(costs.launch_us(shape));
  const auto step_ns = static_cast<std::int64_t>(1000 * costs.step_us(shape));
  busy_until_ns_ = std::max(busy_until_ns_, clock_.now_ns()) + step_ns;
  busy_ns_ += step_ns;
  if (!asynchronous_) clock_.wait_until_ns(busy_until_ns_);
}

void VirtualTimer::run_step(Device& device, const models::StepCosts& costs, const models::StepShape& shape) {
  static_cast<VirtualDevice&>(device).run_step(costs, shape);
}

}  // namespace mstar::simulator
