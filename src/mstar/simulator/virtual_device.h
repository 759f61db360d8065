// A worker's time, and a device whose steps take as long as a table says: virtual, so that they pass at once.
#pragma once

#include <cstdint>
#include <memory>

#include "mstar/base/clock.h"
#include "mstar/device/device.h"
#include "mstar/models/toy/step_costs.h"

namespace mstar::simulator {

// Of one thread that is simulated: the time up to which it has worked.
class VirtualClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now_ns_ / 1000; }
  std::int64_t now_ns() const { return now_ns_; }
  void spend_us(double us) { now_ns_ += static_cast<std::int64_t>(1000 * us); }
  void wait_until_ns(std::int64_t ns) { now_ns_ = ns > now_ns_ ? ns : now_ns_; }

 private:
  std::int64_t now_ns_ = 0;
};

// Memory of the host. What is done to it is done at once, when it is asked for; whether it is over is a matter of the
// clock: steps run one after the other, from when they were launched, and events are reached when what was before them
// is. Where it is not asynchronous, the thread that launches a step waits for its end. Thread: the clock's.
class VirtualDevice final : public Device {
 public:
  // The clock outlives the device.
  VirtualDevice(VirtualClock& clock, bool asynchronous);

  void run_step(const models::StepCosts& costs, const models::StepShape& shape);
  std::int64_t busy_until_ns() const { return busy_until_ns_; }
  std::int64_t busy_ns() const { return busy_ns_; }  // in all

  // What an engine asks to know whether it must wait.
  DeviceId id() const override { return {asynchronous_ ? Backend::cuda : Backend::cpu, 0}; }
  std::string description() const override { return "virtual"; }
  std::size_t total_bytes() const override { return host_->total_bytes(); }
  Result<void*> allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void release(void* pointer) override { host_->release(pointer); }
  Result<void*> allocate_host(std::size_t bytes) override { return host_->allocate_host(bytes); }
  void release_host(void* pointer) override { host_->release_host(pointer); }
  std::int64_t num_allocations() const override { return host_->num_allocations(); }
  Stream default_stream() override { return host_->default_stream(); }
  Result<std::unique_ptr<Event>> make_event(bool timed) override;
  void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    host_->copy_to_device(to, from, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    host_->copy_to_host(to, from, bytes, stream);
  }
  void copy_within(void* to, const void* from, std::size_t bytes, Stream stream) override {
    host_->copy_within(to, from, bytes, stream);
  }
  void fill_zero(void* to, std::size_t bytes, Stream stream) override { host_->fill_zero(to, bytes, stream); }
  void synchronize(Stream) override { clock_.wait_until_ns(busy_until_ns_); }
  bool is_asynchronous() const override { return asynchronous_; }

 private:
  class Point;
  VirtualClock& clock_;
  const bool asynchronous_;
  std::unique_ptr<Device> host_;
  std::int64_t busy_until_ns_ = 0, busy_ns_ = 0;
};

// For models on virtual devices, and no others.
class VirtualTimer final : public models::StepTimer {
 public:
  void run_step(Device& device, const models::StepCosts& costs, const models::StepShape& shape) override;
};

}  // namespace mstar::simulator
