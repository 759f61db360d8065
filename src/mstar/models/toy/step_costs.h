// What steps of a model cost, as a table that was measured somewhere: what timed null models and the simulator go by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "mstar/base/result.h"
#include "mstar/device/device.h"

namespace mstar::models {

// Straight lines between measured points, and on beyond the last two; flat before the first one.
class Curve {
 public:
  Curve() = default;  // 0 everywhere
  // bad_model where x does not grow, or a number is negative or not one.
  static Result<Curve> through(std::vector<std::pair<double, double>> points);
  double at(double x) const;  // never below 0
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

// One step: `num_rows` requests, of which each adds a token, or a part of its prompt.
struct StepShape {
  int num_rows = 0;
  int num_prompt_tokens = 0;        // of all rows of more than one token
  std::int64_t context_tokens = 0;  // that rows had before, all together
};

struct StepCosts {
  Curve rows;                       // microseconds of a step by its rows
  Curve prompt_tokens;              // that those of prompts come to more
  double us_per_context_token = 0;  // beside these
  // Of a device that works beside the host, as a GPU: what the host takes to launch a step, meanwhile or before.
  bool asynchronous = false;
  Curve launch;           // by rows
  int step_tokens = 512;  // the most tokens of a step
  // The way of a message from thread to thread, of a request from its client to the conductor, and of each event from
  // the conductor to the client.
  double message_us = 0, request_us = 0, event_us = 0;
  // The conductor's own work for a request from its submission to its end, and for each chunk of an answer.
  double conductor_request_us = 0, conductor_chunk_us = 0;

  double step_us(const StepShape& shape) const;
  double launch_us(const StepShape& shape) const { return launch.at(shape.num_rows); }
};

// JSON: an object of the names above; curves are lists of [x, microseconds]. `rows` must be there, unknown names are
// refused; "source" says where the numbers are from. bad_model with the file's name and what is wrong.
Result<StepCosts> read_step_costs(const std::filesystem::path& file);

// Makes a step take its time. Thread: the worker's.
class StepTimer {
 public:
  virtual ~StepTimer() = default;
  // A step of this shape begins on the device now, or behind those that it has.
  virtual void run_step(Device& device, const StepCosts& costs, const StepShape& shape) = 0;
};

// Sleeps until the step's time is over.
class SleepingTimer final : public StepTimer {
 public:
  void run_step(Device& device, const StepCosts& costs, const StepShape& shape) override;
};

}  // namespace mstar::models
