#include "mstar/conductor/client_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace mstar::conductor {
namespace {

Error wrong(const char* field, std::string message) { return invalid_request(std::move(message)).with_field(field); }

bool is_from_client(const decl::PortSpec& port) {
  return std::any_of(port.travel.begin(), port.travel.end(),
                     [](const decl::Travel& each) { return std::holds_alternative<decl::FromClient>(each); });
}

template <class To, class From>
Status convert(std::span<const From> from, std::vector<std::byte>& to) {
  to.resize(from.size() * sizeof(To));
  for (std::size_t i = 0; i < from.size(); ++i) {
    if constexpr (std::is_integral_v<To>) {
      const auto number = static_cast<double>(from[i]);
      if (!(number >= static_cast<double>(std::numeric_limits<To>::min()) &&
            number <= static_cast<double>(std::numeric_limits<To>::max()) && std::floor(number) == number))
        return wrong("body", "this input takes whole numbers from " + std::to_string(std::numeric_limits<To>::min()) +
                                 " to " + std::to_string(std::numeric_limits<To>::max()));
    }
    const To number = static_cast<To>(from[i]);
    std::memcpy(to.data() + i * sizeof(To), &number, sizeof(To));
  }
  return ok_status();
}

template <class From>
Status convert(DType dtype, std::span<const From> from, std::vector<std::byte>& to) {
  switch (dtype) {
    case DType::f32:
    case DType::pcm:
      return convert<float>(from, to);
    case DType::i32:
      return convert<std::int32_t>(from, to);
    case DType::i16:
      return convert<std::int16_t>(from, to);
    case DType::u8:
      return convert<std::uint8_t>(from, to);
    case DType::i8:
      return convert<std::int8_t>(from, to);
    default:
      return wrong("body", "this input takes raw bytes of " + std::string(dtype_name(dtype)) + ", not numbers");
  }
}

// The value's elements in the port's dtype.
Result<std::vector<std::byte>> elements_of(const decl::PortSpec& port, const HostValue& value) {
  std::vector<std::byte> out;
  if (value.dtype() == DType::f32) {
    MSTAR_TRY(convert(port.dtype, value.as<float>(), out));
  } else if (value.dtype() == DType::i64) {
    MSTAR_TRY(convert(port.dtype, value.as<std::int64_t>(), out));
  } else {
    out.assign(value.bytes().begin(), value.bytes().end());
  }
  return out;
}

// Elements of one item, and the axis that takes what there is (-1: none).
struct ItemShape {
  std::int64_t elements = 1;
  std::ptrdiff_t open_axis = -1;
  std::vector<std::int64_t> dims;
};
Result<ItemShape> item_shape(const decl::PortSpec& port) {
  ItemShape out;
  for (const decl::Axis& axis : port.axes) {
    out.dims.push_back(axis.size);
    if (axis.size > 0) {
      out.elements *= axis.size;
    } else if (out.open_axis < 0) {
      out.open_axis = static_cast<std::ptrdiff_t>(out.dims.size()) - 1;
    } else {
      return wrong("port", "'" + port.name + "' has more than one axis that varies; it cannot be sent");
    }
  }
  if (port.axes.empty() && is_host_dtype(port.dtype)) {
    out.dims = {-1};
    out.open_axis = 0;
  }
  return out;
}

}  // namespace

Result<ClientItems> ClientInputs::accept(std::string_view name, const HostValue& value, bool done) {
  const decl::PortRef ref = model_.find_port(name);
  if (!ref.valid() || !is_from_client(model_.at(ref)))
    return wrong("port", "the model takes no input '" + std::string(name) + "' while it runs");
  const decl::PortSpec& port = model_.at(ref);
  MSTAR_TRY_ASSIGN(ItemShape shape, item_shape(port));
  MSTAR_TRY_ASSIGN(const std::vector<std::byte> bytes, elements_of(port, value));
  const std::size_t unit = static_cast<std::size_t>(shape.elements) * dtype_bytes(port.dtype);
  if (bytes.size() % unit != 0)
    return wrong("body", std::to_string(bytes.size()) + " bytes are not a multiple of " + std::to_string(unit) +
                             ", the size of one item of '" + port.name + "'");
  const bool one = shape.open_axis >= 0;
  const std::size_t num_items = bytes.empty() ? 0 : one ? 1 : bytes.size() / unit;
  if (one) shape.dims[static_cast<std::size_t>(shape.open_axis)] = static_cast<std::int64_t>(bytes.size() / unit);

  std::lock_guard lock(mutex_);
  Waiting& waiting = waiting_[ref];
  if (waiting.done) return wrong("done", "the input '" + port.name + "' has ended already");
  if (static_cast<std::int64_t>(waiting.item_bytes.size() + num_items) > kMaxWaitingItems ||
      waiting.bytes + bytes.size() > kMaxWaitingBytes)
    return exhausted("too much of '" + port.name + "' waits to be read; send slower").with_field("body");
  ClientItems out{.port = ref, .first_index = waiting.num_items};
  for (std::size_t i = 0; i < num_items; ++i) {
    const std::size_t size = bytes.size() / num_items;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(i * size);
    out.items.emplace_back(port.dtype, shape.dims,
                           std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(size)));
    waiting.item_bytes.push_back(size);
  }
  waiting.num_items += static_cast<std::int64_t>(num_items);
  waiting.bytes += bytes.size();
  waiting.done = done;
  if (done) out.total = waiting.num_items;
  return out;
}

void ClientInputs::note_consumed(decl::PortRef port, std::int64_t num_items) {
  std::lock_guard lock(mutex_);
  const auto it = waiting_.find(port);
  if (it == waiting_.end()) return;
  Waiting& waiting = it->second;
  const std::int64_t more = std::clamp<std::int64_t>(num_items - waiting.num_consumed, 0,
                                                     static_cast<std::int64_t>(waiting.item_bytes.size()));
  for (std::int64_t i = 0; i < more; ++i) waiting.bytes -= waiting.item_bytes[static_cast<std::size_t>(i)];
  waiting.item_bytes.erase(waiting.item_bytes.begin(), waiting.item_bytes.begin() + more);
  waiting.num_consumed += more;
}

ClientInputs::Counts ClientInputs::counts(decl::PortRef port) const {
  std::lock_guard lock(mutex_);
  const auto it = waiting_.find(port);
  if (it == waiting_.end()) return {};
  return {it->second.num_items, it->second.done};
}

std::vector<std::string> client_input_ports(const decl::Decl& model) {
  std::vector<std::string> out;
  for (const decl::PortSpec& port : model.ports())
    if (is_from_client(port)) out.push_back(port.name);
  return out;
}

}  // namespace mstar::conductor
