#include "mstar/models/toy/step_costs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "mstar/models/checkpoint_text.h"

namespace mstar::models {
namespace {

constexpr double kMaxNumber = 1e9;

bool is_number(const nlohmann::json& value) {
  return value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxNumber;
}

Result<Curve> read_curve(const nlohmann::json& value) {
  std::vector<std::pair<double, double>> points;
  if (!value.is_array()) return bad_model("must be a list of [x, microseconds]");
  for (const auto& each : value) {
    if (!each.is_array() || each.size() != 2 || !is_number(each[0]) || !is_number(each[1]))
      return bad_model("must be a list of [x, microseconds], both from 0 to 1e9");
    points.emplace_back(each[0].get<double>(), each[1].get<double>());
  }
  return Curve::through(std::move(points));
}

Status read_field(StepCosts& costs, const std::string& name, const nlohmann::json& value) {
  const std::pair<const char*, Curve*> curves[] = {
      {"rows", &costs.rows}, {"prompt_tokens", &costs.prompt_tokens}, {"launch", &costs.launch}};
  for (const auto& [known, curve] : curves)
    if (name == known) {
      MSTAR_TRY_ASSIGN(*curve, read_curve(value));
      return ok_status();
    }
  const std::pair<const char*, double*> numbers[] = {{"us_per_context_token", &costs.us_per_context_token},
                                                     {"message_us", &costs.message_us},
                                                     {"request_us", &costs.request_us},
                                                     {"event_us", &costs.event_us},
                                                     {"conductor_request_us", &costs.conductor_request_us},
                                                     {"conductor_chunk_us", &costs.conductor_chunk_us}};
  for (const auto& [known, number] : numbers)
    if (name == known) {
      if (!is_number(value)) return bad_model("must be a number from 0 to 1e9");
      *number = value.get<double>();
      return ok_status();
    }
  if (name == "asynchronous") {
    if (!value.is_boolean()) return bad_model("must be true or false");
    costs.asynchronous = value.get<bool>();
    return ok_status();
  }
  if (name == "step_tokens") {
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > 1 << 20)
      return bad_model("must be a whole number from 1 to 1048576");
    costs.step_tokens = value.get<int>();
    return ok_status();
  }
  if (name == "source") return ok_status();
  return bad_model("is unknown; step_costs.h lists the names");
}

}  // namespace

Result<Curve> Curve::through(std::vector<std::pair<double, double>> points) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!(points[i].first >= 0 && points[i].second >= 0)) return bad_model("has a number below 0, or none");
    if (i > 0 && points[i].first <= points[i - 1].first) return bad_model("must have its points in growing order");
  }
  Curve out;
  out.points_ = std::move(points);
  return out;
}

double Curve::at(double x) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || x <= points_.front().first) return points_.front().second;
  auto right = std::find_if(points_.begin(), points_.end(), [&](const auto& each) { return each.first >= x; });
  if (right == points_.end()) --right;
  const auto left = right - 1;
  const double slope = (right->second - left->second) / (right->first - left->first);
  return std::max(0.0, left->second + slope * (x - left->first));
}

double StepCosts::step_us(const StepShape& shape) const {
  return rows.at(shape.num_rows) + prompt_tokens.at(shape.num_prompt_tokens) +
         us_per_context_token * static_cast<double>(shape.context_tokens);
}

Result<StepCosts> read_step_costs(const std::filesystem::path& file) {
  MSTAR_TRY_ASSIGN(const nlohmann::json object, read_json_file(file, true));
  if (!object.is_object()) return bad_model(file.string() + ": step costs are a JSON object");
  StepCosts out;
  for (const auto& [name, value] : object.items())
    if (const Status read = read_field(out, name, value); !read)
      return bad_model(file.string() + ": '" + name + "' " + read.error().message);
  if (out.rows.points().empty()) return bad_model(file.string() + ": 'rows', a step's time by its rows, is missing");
  return out;
}

void SleepingTimer::run_step(Device&, const StepCosts& costs, const StepShape& shape) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::nanoseconds(static_cast<std::int64_t>(1000 * costs.step_us(shape)));
  std::this_thread::sleep_until(end);
}

}  // namespace mstar::models
