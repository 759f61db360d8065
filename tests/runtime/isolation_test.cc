// Real models on workers in threads and in processes: the same answers, by whatever way the tensors go.
#include <gtest/gtest.h>

#include "isolation_support.h"
#include "warmup.h"

namespace mstar::apps {
namespace {

const std::string kSpeech = "/usr/share/pocketsphinx/test/data/librivox/sense_and_sensibility_01_austen_64kb-0870.wav";

constexpr std::int64_t kSeededStatesBytes = 50 * 64 * 4;  // positions x dim of f32, of one window of a second

std::shared_ptr<const std::string> speech() {
  std::ifstream file(kSpeech, std::ios::binary);
  return std::make_shared<const std::string>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// Features and encoder on rank 0, what keeps a request's caches on rank 1.
ModelConfig split_model(const std::string& path) {
  ModelConfig out{.model = path, .name = "m"};
  out.node_groups = {{.components = {"features", "encoder"}, .ranks = {0}},
                     {.components = {"cross", "decoder"}, .ranks = {1}}};
  return out;
}

std::unique_ptr<Runtime> build(Isolation isolation, ModelConfig model) {
  auto runtime = Runtime::build(config_of(isolation, {std::move(model)}));
  EXPECT_TRUE(runtime) << runtime.error().message;
  return runtime ? std::move(*runtime) : nullptr;
}

// One worker and two, in threads and in processes: text, times and number of tokens are the same bytes each time.
void expect_same_answers(const std::string& path, std::shared_ptr<const std::string> audio) {
  std::string first;
  for (const Isolation isolation : {Isolation::thread, Isolation::process})
    for (const bool split : {false, true}) {
      const auto runtime = build(isolation, split ? split_model(path) : model_of(path, "m"));
      ASSERT_TRUE(runtime);
      for (int rank = 0; rank <= int{split}; ++rank)
        EXPECT_EQ(runtime->worker_pid(rank).has_value(), isolation == Isolation::process);
      const std::string got = answer(*runtime, "m", audio);
      if (first.empty()) first = got;
      EXPECT_EQ(got, first);
      EXPECT_EQ(answer(*runtime, "m", audio), first);
    }
  EXPECT_EQ(first.find("failed"), std::string::npos) << first;
  EXPECT_NE(first.find("tokens"), std::string::npos) << first;
}

TEST(Isolation, ThreadsAndProcessesAnswerWithTheSameBytes) { expect_same_answers(kSeeded, tone(5)); }

TEST(Isolation, RealWeightsAnswerWithTheSameBytes) {
  const std::string path = find_model("whisper-tiny.en");
  if (!fs::exists(path) || !fs::exists(kSpeech)) GTEST_SKIP() << "no weights or no speech here";
  expect_same_answers(path, speech());
}

// The encoder's states go from its worker to the decoder's and nowhere else: each window's once, whole.
TEST(Isolation, TensorsGoStraightFromWorkerToWorker) {
  for (const Isolation isolation : {Isolation::thread, Isolation::process}) {
    const auto runtime = build(isolation, split_model(kSeeded));
    ASSERT_TRUE(runtime);
    EXPECT_EQ(answer(*runtime, "m", tone(4)).find("failed"), std::string::npos);
    const std::string steps = "mstar_steps_total{worker=\"1\",model=\"m\",component=\"encoder\"}";
    const auto of_encoder = [&](const std::string& name) { return metric(*runtime, name + "{worker=\"1\"}"); };
    // The last numbers come a little after the answer.
    EXPECT_TRUE(comes_true([&] {
      const std::int64_t num_windows = metric(*runtime, steps);
      return num_windows >= 3 && of_encoder("mstar_handed_over_total") == num_windows &&
             of_encoder("mstar_handed_over_bytes_total") == num_windows * kSeededStatesBytes;
    })) << metric(*runtime, steps)
        << " windows, " << of_encoder("mstar_handed_over_total") << " buffers, "
        << of_encoder("mstar_handed_over_bytes_total") << " bytes";
    EXPECT_EQ(metric(*runtime, "mstar_handed_over_bytes_total{worker=\"0\"}"), 0);
    // Tokens and scores go on to the host, and nothing large.
    EXPECT_LT(metric(*runtime, "mstar_handed_over_bytes_total{worker=\"2\"}"), kSeededStatesBytes);
  }
}

TEST(Isolation, WeightsAreLoadedWhereTheyAreUsed) {
  const auto whole = build(Isolation::process, model_of(kSeeded, "m"));
  const auto split = build(Isolation::process, split_model(kSeeded));
  ASSERT_TRUE(whole && split);
  const std::int64_t all = metric(*whole, "mstar_weight_bytes{worker=\"1\"}");
  const std::int64_t encoder = metric(*split, "mstar_weight_bytes{worker=\"1\"}");
  const std::int64_t decoder = metric(*split, "mstar_weight_bytes{worker=\"2\"}");
  EXPECT_GT(encoder, 0);
  EXPECT_GT(decoder, 0);
  EXPECT_EQ(encoder + decoder, all);
  EXPECT_EQ(metric(*split, "mstar_weight_bytes{worker=\"0\"}"), 0);
}

// Two replicas by ranks: while one has a request, the next goes to the other one.
TEST(Isolation, TheLessLoadedReplicaIsChosen) {
  const auto audio = tone(900);
  for (const Isolation isolation : {Isolation::thread, Isolation::process}) {
    ModelConfig twice = model_of(kSeeded, "m");
    twice.node_groups[0].ranks = {0, 1};
    const auto runtime = build(isolation, twice);
    ASSERT_TRUE(runtime);
    const auto used = [&](int worker) {
      return metric(*runtime, "mstar_resource_used{worker=\"" + std::to_string(worker) +
                                  "\",model=\"m\",resource=\"decoder.sampler\"}");
    };
    const Call a = call(*runtime, "m", audio), b = call(*runtime, "m", audio);
    ASSERT_TRUE(comes_true([&] { return used(1) == 1 && used(2) == 1; })) << used(1) << " " << used(2);
    const Call c = call(*runtime, "m", audio), d = call(*runtime, "m", audio);
    ASSERT_TRUE(comes_true([&] { return used(1) == 2 && used(2) == 2; })) << used(1) << " " << used(2);
    for (const Call* each : {&a, &b, &c, &d}) runtime->frontend().abort(each->id);
    for (const Call* each : {&a, &b, &c, &d}) EXPECT_FALSE(each->sink->wait());
    EXPECT_TRUE(comes_true([&] { return used(1) == 0 && used(2) == 0; }));
  }
}

TEST(Isolation, TheWarmupReachesEveryReplica) {
  ModelConfig twice = model_of(kSeeded, "m");
  twice.node_groups[0].ranks = {0, 1};
  const auto runtime = build(Isolation::process, twice);
  ASSERT_TRUE(runtime);
  EXPECT_EQ(runtime->num_replicas(), (std::map<std::string, std::vector<std::size_t>>{{"m", {2}}}));
  const fs::path file = fs::temp_directory_path() / ("mstar-warmup-" + std::to_string(::getpid()) + ".wav");
  std::ofstream(file, std::ios::binary) << *tone(2);
  const Status ran = run_warmup(runtime->frontend(), {{.files = {file.string()}}}, runtime->num_replicas());
  fs::remove(file);
  ASSERT_TRUE(ran) << ran.error().message;
  for (const std::string worker : {"1", "2"}) {
    const std::string steps = "mstar_steps_total{worker=\"" + worker + "\",model=\"m\",component=\"decoder\"}";
    EXPECT_TRUE(comes_true([&] { return metric(*runtime, steps) > 0; })) << worker;
  }
}

TEST(Isolation, MetricsCoverTheOtherProcesses) {
  auto built = Runtime::build(config_of(Isolation::process, {model_of(kSeeded, "m")}));
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(answer(**built, "m", tone(2)).find("failed"), std::string::npos);
  const auto value_of = [&](const std::string& start) { return metric(**built, start); };
  const std::string used = "mstar_resource_used{worker=\"1\",model=\"m\",resource=\"decoder.kv\"}";
  EXPECT_GT(value_of("mstar_resource_total{worker=\"1\",model=\"m\",resource=\"decoder.kv\"}"), 0);
  const std::string steps = "mstar_steps_total{worker=\"1\",model=\"m\",component=\"decoder\"}";
  EXPECT_TRUE(comes_true([&] { return value_of(steps) > 0 && value_of(used) == 0; }, 10s));
  const Call long_one = call(**built, "m", tone(600));
  EXPECT_TRUE(comes_true([&] { return value_of(used) > 0; }));
  (*built)->frontend().abort(long_one.id);
  EXPECT_FALSE(long_one.sink->wait());
  EXPECT_TRUE(comes_true([&] { return value_of(used) == 0; }));
}

}  // namespace
}  // namespace mstar::apps
