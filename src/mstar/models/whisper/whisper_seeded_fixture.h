// The seeded tiny Whisper of tests/golden with its components as engines on the CPU, whole or as one rank of a group.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "mstar/device/cpu/cpu_device.h"
#include "mstar/engine/engine.h"
#include "mstar/models/whisper/whisper.h"
#include "mstar/resource/cross_kv.h"

namespace mstar::models::whisper_fixture {

namespace fs = std::filesystem;
inline const fs::path kGolden = fs::path(MSTAR_SOURCE_DIR) / "tests/golden/whisper_tiny_seeded";

// One checkpoint with the tokenizer that the formats share, and its components as engines on the CPU.
class Seeded {
 public:
  explicit Seeded(const std::string& format, const std::string& storage = "stored", const MeshEnds& group = {}) {
    const Status built = build(format, storage, group);
    EXPECT_TRUE(built) << built.error().message;
  }
  // What a model that cannot be built says.
  static Status fault(const std::string& format, const MeshEnds& group) {
    Seeded model;
    return model.build(format, "stored", group);
  }
  ~Seeded() { fs::remove_all(directory_); }

  std::size_t weight_bytes(int which) const { return engines_[static_cast<std::size_t>(which)]->weight_bytes(); }
  // Of the request's slot: keys, or values, as [heads, tokens, head_dim]; see SlotKvView for how they lie.
  std::vector<float> cross(int layer, bool values, std::int64_t num_tokens) const {
    std::vector<float> out;
    for (std::uint16_t i = 0; i < decl_->resources().size(); ++i) {
      const auto* const pool = dynamic_cast<resource::CrossKvPool*>(resources_.at(decl::ResourceRef(i)));
      if (!pool) continue;
      const SlotKvView view = pool->view(layer, 0);
      const TensorView slot = (values ? view.values : view.keys).at(1);
      const std::int64_t capacity = slot.dim(0), dim = slot.dim(2);
      for (std::int64_t head = 0; head < slot.dim(1); ++head)
        for (std::int64_t t = 0; t < num_tokens; ++t)
          for (std::int64_t d = 0; d < dim; ++d)
            out.push_back(slot.data<float>()[head * capacity * dim +
                                             (values ? t * dim + d : t / 16 * 16 * dim + d * 16 + t % 16)]);
    }
    return out;
  }
  // Of all pools, once the request is gone.
  std::int64_t num_used_after() {
    resources_.remove_request(RequestId(1));
    std::int64_t out = 0;
    for (const resource::Usage& each : resources_.usage()) out += each.used;
    return out;
  }

  // Runs a component (0 encoder, 1 cross, 2 decoder) for the first run of it in `walk`.
  std::vector<Values> run(int which, const std::string& walk, std::vector<Values> ports) {
    const char* names[] = {"encoder", "cross", "decoder"};
    const decl::ComponentRef component = decl_->find_component(names[which]);
    engine::RowInputs row{
        .request = RequestId(1), .params = std::make_shared<decl::RequestParams>(), .walk = decl_->find_walk(walk)};
    decl::for_each_run(decl_->at(row.walk).root, [&](const decl::Run& each) {
      if (each.component == component && !row.run) row.run = &each;
    });
    row.ports = std::move(ports);
    std::vector<engine::RowInputs> rows;
    rows.push_back(std::move(row));
    auto prepared = engines_[static_cast<std::size_t>(which)]->prepare(std::move(rows));
    EXPECT_TRUE(prepared.step);
    for (bool done = false; !done;) {
      auto advanced = engines_[static_cast<std::size_t>(which)]->advance(*prepared.step);
      EXPECT_TRUE(advanced);
      done = !advanced || *advanced;
    }
    auto results = engines_[static_cast<std::size_t>(which)]->finish(std::move(prepared.step));
    EXPECT_FALSE(results[0].error) << results[0].error->message;
    return std::move(results[0].outputs);
  }

 private:
  Seeded() = default;

  Status build(const std::string& format, const std::string& storage, const MeshEnds& group) {
    static std::atomic<int> num_made = 0;
    directory_ = fs::temp_directory_path() / ("mstar_whisper_" + format + "_" + storage + "_" +
                                              std::to_string(getpid()) + "_" + std::to_string(++num_made));
    fs::create_directories(directory_);
    for (const auto& entry : fs::directory_iterator(kGolden / format))
      fs::copy_file(entry.path(), directory_ / entry.path().filename(), fs::copy_options::overwrite_existing);
    fs::copy_file(kGolden / "hf/tokenizer.json", directory_ / "tokenizer.json", fs::copy_options::overwrite_existing);
    MSTAR_TRY_ASSIGN(checkpoint_, weights::Checkpoint::open(directory_));
    ModelSource source{.name = "seeded", .directory = directory_, .checkpoint = checkpoint_};
    source.options.set("weights", storage);
    EXPECT_TRUE(whisper_recognises(source));
    MSTAR_TRY_ASSIGN(decl::Decl declared, declare_whisper(source));
    decl_ = std::make_unique<decl::Decl>(std::move(declared));
    EXPECT_EQ(decl_->validate(), std::vector<std::string>{});
    device_ = make_cpu_device();
    buffers_ = std::make_shared<engine::BufferPool>(*device_);
    MSTAR_TRY_ASSIGN(weights::WeightMap map, weights::WeightMap::create(checkpoint_, decl_->weight_rules()));
    const resource::PoolLimits limits{.max_requests = 4, .max_rows = 4, .max_tokens = 64};
    std::vector<decl::ComponentRef> components;
    for (const char* name : {"encoder", "cross", "decoder"}) components.push_back(decl_->find_component(name));
    MSTAR_TRY_ASSIGN(resources_, engine::ResourceSet::build(*decl_, components, limits, *device_, group.size()));
    for (const decl::ComponentRef component : components) {
      resource::PoolLimits own = limits;
      own.head_shards = decl::head_shards(decl_->at(component).device(), group.size());
      MSTAR_TRY_ASSIGN(
          auto made,
          engine::Engine::create(*decl_, component, {.limits = own, .buffers = buffers_, .pool = &pool_, .mesh = group},
                                 resources_, map, *device_));
      engines_.push_back(std::move(made));
    }
    const std::string homes[] = {"encoder.", "cross.", "decoder."};
    MSTAR_TRY(map.finish(homes));
    return resources_.add_request(RequestId(1), {});
  }

  fs::path directory_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  std::unique_ptr<decl::Decl> decl_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_{2};
  std::shared_ptr<engine::BufferPool> buffers_;
  engine::ResourceSet resources_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
};

inline HostValue golden_port(const weights::Checkpoint& ports, const char* name) {
  const weights::StoredWeight* stored = ports.find(name);
  EXPECT_NE(stored, nullptr) << name;
  return HostValue(DType::f32, stored->shape.dims(), {stored->bytes.begin(), stored->bytes.end()});
}

inline double largest_difference(const HostValue& a, const HostValue& b) {
  EXPECT_EQ(a.size_bytes(), b.size_bytes());
  double worst = 0;
  for (std::size_t i = 0; i < a.as<float>().size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a.as<float>()[i]) - b.as<float>()[i]));
  return worst;
}

}  // namespace mstar::models::whisper_fixture
