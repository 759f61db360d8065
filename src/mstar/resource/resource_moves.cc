// What a request keeps in a resource, taken out on one worker and put in on another.
#include <array>
#include <utility>

#include "mstar/resource/paged_kv.h"
#include "mstar/resource/sampler_rows.h"
#include "mstar/resource/state_slots.h"

namespace mstar::resource {
namespace {

Error unknown(const std::string& name) {
  return internal_error("'" + name + "' does not know the request whose state moves");
}
Error in_flight(const std::string& name) {
  return internal_error("a request's state in '" + name + "' was to move under a row in flight");
}
Error not_whole(const std::string& name) {
  return internal_error("what came for '" + name + "' is not the state of such a resource");
}

template <class T>
HostValue numbers(DType dtype, const std::vector<T>& values) {
  return HostValue::of<T>(dtype, std::span<const T>(values));
}

bool is_list(const Value& value, DType dtype) { return value.on_host() && value.host.dtype() == dtype; }

enum PagedValue { kNumbers, kText, kKeysAndValues, kNumPagedValues };

}  // namespace

// ---- paged KV
Dims PagedKvPool::moved_dims(int num_tokens) const {
  const TensorView storage = storage_.view();
  return {storage.dim(0), 2, pages_for(num_tokens), storage.dim(3), storage.dim(4), storage.dim(5)};
}

// Pages move whole: how tokens lie inside of one is the attention's affair.
template <class Visit>
void PagedKvPool::for_each_stretch(const std::vector<std::int32_t>& pages, int num_tokens, Visit&& visit) const {
  std::size_t at = 0;
  const int num_pages = pages_for(num_tokens);
  for (int layer = 0; layer < spec_.layers; ++layer)
    for (int part = 0; part < 2; ++part) {
      const TensorView all = storage_.view().at(layer).at(part);
      for (int i = 0; i < num_pages; ++i) {
        const TensorView page = all.at(pages[static_cast<std::size_t>(i)]);
        visit(page.pointer, at, page.bytes());
        at += page.bytes();
      }
    }
}

// Whoever holds pages was promised them: else older ones could wait for pages that nobody is to give back.
Result<bool> PagedKvPool::has_room_for(RequestId id, int label, int num_tokens) {
  if (pages_for(num_tokens) > num_available()) return false;
  if (num_tokens == 0) return true;
  Request& request = requests_.at(id);
  const auto waiting = first_unpromised_;
  auto promised = promise(id, request, request.sequences[static_cast<std::size_t>(label)],
                          {.request = id, .label = label, .num_tokens = 1}, {});
  first_unpromised_ = waiting;  // it does not stand in line
  return promised;
}

// Of one label: a frame between processes has room for a gigabyte. What is longer is computed again.
constexpr std::size_t kMostMovedBytes = std::size_t{768} << 20;

Result<Values> PagedKvPool::take_out(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(spec_.name);
  Request& request = it->second;
  if (request.in_flight()) return in_flight(spec_.name);
  Values out;
  const Stream stream = device_.default_stream();
  for (Sequence& sequence : request.sequences) {
    const auto bytes_of = [&](const Dims& dims) {
      std::size_t bytes = dtype_bytes(spec_.dtype);
      for (const std::int64_t dim : dims) bytes *= static_cast<std::size_t>(dim);
      return bytes;
    };
    const bool is_long = !sequence.opaque && bytes_of(moved_dims(sequence.committed_tokens)) > kMostMovedBytes;
    const int num_tokens = is_long ? 0 : sequence.committed_tokens;
    const Dims dims = moved_dims(num_tokens);
    const std::size_t bytes = bytes_of(dims);
    std::vector<std::byte> content(bytes);
    for_each_stretch(sequence.pages, num_tokens, [&](void* place, std::size_t at, std::size_t size) {
      device_.copy_to_host(content.data() + at, place, size, stream);
    });
    device_.synchronize(stream);
    out.emplace_back(numbers<std::int64_t>(DType::i64, {num_tokens, sequence.opaque}));
    out.emplace_back(HostValue::i32(sequence.text));
    out.emplace_back(HostValue(spec_.dtype, dims, std::move(content)));
    drop_kept(sequence);
    sequence.forget();
    release_tail(sequence);
  }
  end_building(request);
  request.promised = request.leaving = false;
  request.promised_pages = 0;
  return out;
}

Status PagedKvPool::put_in(RequestId id, const Values& values) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(spec_.name);
  Request& request = it->second;
  if (request.in_flight()) return in_flight(spec_.name);
  if (values.size() != request.sequences.size() * kNumPagedValues) return not_whole(spec_.name);
  const Stream stream = device_.default_stream();
  for (std::size_t label = 0; label < request.sequences.size(); ++label) {
    const Value* const of_label = &values[label * kNumPagedValues];
    if (!is_list(of_label[kNumbers], DType::i64) || !is_list(of_label[kText], DType::i32)) return not_whole(spec_.name);
    const auto sizes = of_label[kNumbers].host.as<std::int64_t>();
    const auto text = of_label[kText].host.as<std::int32_t>();
    const HostValue& content = of_label[kKeysAndValues].host;
    if (sizes.size() != 2) return not_whole(spec_.name);
    const std::int64_t most = spec_.max_tokens_per_request;
    const bool opaque = sizes[1] != 0;
    const bool fits = sizes[0] >= 0 && sizes[0] <= most && text.size() <= static_cast<std::size_t>(most) &&
                      (opaque ? text.empty() : static_cast<std::int64_t>(text.size()) >= sizes[0]);
    if (!fits || content.dtype() != spec_.dtype || content.dims() != moved_dims(static_cast<int>(sizes[0])))
      return not_whole(spec_.name);
    Sequence& sequence = request.sequences[label];
    sequence.forget();
    release_tail(sequence);
    sequence.opaque = opaque;
    sequence.text.assign(text.begin(), text.end());
    const int num_tokens = static_cast<int>(sizes[0]);
    if (opaque) sequence.committed_tokens = num_tokens;
    MSTAR_TRY_ASSIGN(const bool has_room, has_room_for(id, static_cast<int>(label), num_tokens));
    if (!has_room) {
      sequence.committed_tokens = 0;
      if (opaque) return exhausted("no pages for a request that came from another worker in '" + spec_.name + "'");
      continue;  // its tokens are computed again when its turn comes
    }
    make_writable(sequence, 0, num_tokens);
    sequence.committed_tokens = sequence.planned_tokens = num_tokens;
    for_each_stretch(sequence.pages, num_tokens, [&](void* place, std::size_t at, std::size_t size) {
      device_.copy_to_device(place, content.bytes().data() + at, size, stream);
    });
    device_.synchronize(stream);
    if (!opaque) seal(request, sequence);
  }
  return ok_status();
}

// ---- state of fixed size
Result<Values> StateSlots::take_out(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(name_);
  Values out;
  const Stream stream = device_.default_stream();
  for (State& state : it->second) {
    if (state.num_in_flight > 0) return in_flight(name_);
    for (const Tensor& tensor : storage_) {
      const TensorView view = tensor.view().at(state.current);
      std::vector<std::byte> content(view.bytes());
      device_.copy_to_host(content.data(), view.pointer, content.size(), stream);
      device_.synchronize(stream);
      std::vector<std::int64_t> dims;
      for (int d = 0; d < view.shape.rank(); ++d) dims.push_back(view.dim(d));
      out.emplace_back(HostValue(view.dtype, dims, std::move(content)));
    }
  }
  return out;
}

Status StateSlots::put_in(RequestId id, const Values& values) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(name_);
  if (values.size() != it->second.size() * storage_.size()) return not_whole(name_);
  const Stream stream = device_.default_stream();
  std::size_t next = 0;
  for (State& state : it->second) {
    if (state.num_in_flight > 0) return in_flight(name_);
    for (const Tensor& tensor : storage_) {
      const TensorView view = tensor.view().at(state.current);
      const HostValue& content = values[next++].host;
      if (content.dtype() != view.dtype || content.size_bytes() != view.bytes()) return not_whole(name_);
      device_.copy_to_device(view.pointer, content.bytes().data(), content.size_bytes(), stream);
    }
    state.is_zero = false;
  }
  device_.synchronize(stream);
  return ok_status();
}

// ---- sampling
Result<Values> SamplerPool::take_out(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(spec_.name);
  const Request& request = it->second;
  std::vector<std::int32_t> bias_ids;
  std::vector<float> bias_values;
  for (const TokenBias& each : request.biases) {
    bias_ids.push_back(each.id);
    bias_values.push_back(each.value);
  }
  const std::vector<std::int32_t> counted(request.counted.begin(), request.counted.end());
  return Values{numbers<std::int64_t>(DType::i64, {static_cast<std::int64_t>(request.row.offset)}),
                HostValue::i32(request.seen), HostValue::i32(bias_ids), HostValue::f32(bias_values),
                HostValue::i32(counted)};
}

Status SamplerPool::put_in(RequestId id, const Values& values) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return unknown(spec_.name);
  constexpr std::array kKinds = {DType::i64, DType::i32, DType::i32, DType::f32, DType::i32};
  if (values.size() != kKinds.size()) return not_whole(spec_.name);
  for (std::size_t i = 0; i < kKinds.size(); ++i)
    if (!is_list(values[i], kKinds[i])) return not_whole(spec_.name);
  const auto offset = values[0].host.as<std::int64_t>();
  const auto bias_ids = values[2].host.as<std::int32_t>();
  const auto bias_values = values[3].host.as<float>();
  if (offset.size() != 1 || bias_ids.size() != bias_values.size()) return not_whole(spec_.name);
  Request& request = it->second;
  request.row.offset = static_cast<std::uint64_t>(offset[0]);
  request.seen.clear();
  request.seen_at.clear();
  for (const std::int32_t each : values[1].host.as<std::int32_t>()) request.see(each);
  request.biases.clear();
  request.bias_at.clear();
  for (std::size_t i = 0; i < bias_ids.size(); ++i) request.bias_of(bias_ids[i]).value = bias_values[i];
  const auto counted = values[4].host.as<std::int32_t>();
  request.counted = {counted.begin(), counted.end()};
  return ok_status();
}

}  // namespace mstar::resource
