// Real models with each device worker in a process of its own: the same answers, and what a death costs.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "runtime.h"
#include "waiting_sink.h"
#include "weight_cache.h"

namespace mstar::apps {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

const std::string kSeeded = std::string(MSTAR_SOURCE_DIR) + "/tests/golden/whisper_tiny_seeded/hf";

// `seconds` of a tone that glides, as a 16 kHz WAV file.
std::shared_ptr<const std::string> tone(int seconds) {
  const std::uint32_t num_bytes = static_cast<std::uint32_t>(seconds) * 16000 * 2;
  std::string out;
  const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  out += "RIFF";
  put(num_bytes + 36);
  out += "WAVEfmt ";
  put(std::uint32_t{16});
  put(std::uint16_t{1});
  put(std::uint16_t{1});
  put(std::uint32_t{16000});
  put(std::uint32_t{32000});
  put(std::uint16_t{2});
  put(std::uint16_t{16});
  out += "data";
  put(num_bytes);
  for (int i = 0; i < seconds * 16000; ++i) {
    const double t = i / 16000.0;
    put(static_cast<std::int16_t>(8000 * std::sin(t * (900 + 300 * std::sin(t)))));
  }
  return std::make_shared<const std::string>(std::move(out));
}

RuntimeConfig config_of(Isolation isolation, std::vector<ModelConfig> models) {
  RuntimeConfig config;
  config.models = std::move(models);
  config.num_threads = 2;
  config.max_concurrent_requests = 4;
  config.isolation = isolation;
  config.worker_program = MSTAR_BINARY;
  return config;
}

ModelConfig model_of(const std::string& path, const std::string& name, int rank = 0) {
  ModelConfig out{.model = path, .name = name};
  out.node_groups = {{.components = {"encoder", "cross", "decoder"}, .ranks = {rank}}};
  return out;
}

struct Call {
  std::shared_ptr<std::string> text = std::make_shared<std::string>();
  std::shared_ptr<std::atomic<int>> num_chunks = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<WaitingSink> sink;
  RequestId id;
};

Call call(Runtime& runtime, const std::string& model, std::shared_ptr<const std::string> audio) {
  Call out;
  out.sink = std::make_shared<WaitingSink>([text = out.text, count = out.num_chunks](const decl::Chunk& chunk) {
    *text += chunk.value.text();
    *text += '\n';
    ++*count;
  });
  decl::ApiRequest request{.route = decl::Route::audio_transcriptions, .model = model};
  request.media.push_back({.field = "file", .file_name = "tone.wav", .bytes = std::move(audio)});
  auto id = runtime.frontend().submit(std::move(request), out.sink);
  EXPECT_TRUE(id) << id.error().message;
  if (id) out.id = *id;
  return out;
}

std::string answer(Runtime& runtime, const std::string& model, std::shared_ptr<const std::string> audio) {
  const Call made = call(runtime, model, std::move(audio));
  const auto finished = made.sink->wait();
  if (!finished) return "failed: " + finished.error().message;
  return *made.text + std::to_string(finished->usage.completion_tokens);
}

template <class Condition>
bool comes_true(Condition condition, std::chrono::seconds limit = 60s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

void expect_same_answers(const std::string& path, std::shared_ptr<const std::string> audio) {
  std::vector<std::string> answers;
  for (const Isolation isolation : {Isolation::thread, Isolation::process}) {
    auto runtime = Runtime::build(config_of(isolation, {model_of(path, "m")}));
    ASSERT_TRUE(runtime) << runtime.error().message;
    EXPECT_EQ((*runtime)->worker_pid(0).has_value(), isolation == Isolation::process);
    answers.push_back(answer(**runtime, "m", audio));
    EXPECT_EQ(answer(**runtime, "m", audio), answers.back());
  }
  EXPECT_FALSE(answers[0].empty());
  EXPECT_EQ(answers[0].find("failed"), std::string::npos) << answers[0];
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(Isolation, ThreadsAndProcessesAnswerWithTheSameBytes) { expect_same_answers(kSeeded, tone(5)); }

TEST(Isolation, RealWeightsAnswerWithTheSameBytes) {
  const std::string path = find_model("whisper-tiny.en");
  const fs::path speech = "/usr/share/pocketsphinx/test/data/librivox/sense_and_sensibility_01_austen_64kb-0870.wav";
  if (!fs::exists(path) || !fs::exists(speech)) GTEST_SKIP() << "no weights or no speech here";
  std::ifstream file(speech, std::ios::binary);
  expect_same_answers(path, std::make_shared<const std::string>(std::istreambuf_iterator<char>(file),
                                                                std::istreambuf_iterator<char>()));
}

TEST(Isolation, EncoderAndDecoderInTwoProcesses) {
  ModelConfig split{.model = kSeeded, .name = "m"};
  split.node_groups = {{.components = {"encoder"}, .ranks = {0}}, {.components = {"cross", "decoder"}, .ranks = {1}}};
  auto threads = Runtime::build(config_of(Isolation::thread, {model_of(kSeeded, "m")}));
  auto processes = Runtime::build(config_of(Isolation::process, {split}));
  ASSERT_TRUE(threads) << threads.error().message;
  ASSERT_TRUE(processes) << processes.error().message;
  EXPECT_NE((*processes)->worker_pid(0), (*processes)->worker_pid(1));
  EXPECT_EQ(answer(**threads, "m", tone(4)), answer(**processes, "m", tone(4)));
}

TEST(Isolation, AKilledWorkerTakesItsRequestsAlongAndComesBack) {
  auto built =
      Runtime::build(config_of(Isolation::process, {model_of(kSeeded, "hit", 0), model_of(kSeeded, "spared", 1)}));
  ASSERT_TRUE(built) << built.error().message;
  Runtime& runtime = **built;
  const std::string expected = answer(runtime, "hit", tone(3));
  const std::string spared_alone = answer(runtime, "spared", tone(20));
  for (int round = 0; round < 2; ++round) {
    const Call hit = call(runtime, "hit", tone(600));
    const Call spared = call(runtime, "spared", tone(20));
    ASSERT_TRUE(comes_true([&] { return *hit.num_chunks > 0; }));
    const auto pid = runtime.worker_pid(0);
    ASSERT_TRUE(pid);
    ASSERT_EQ(::kill(*pid, SIGKILL), 0);
    const auto end = hit.sink->wait();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, Code::unavailable);
    EXPECT_NE(end.error().message.find("killed by signal 9"), std::string::npos) << end.error().message;
    const auto other = spared.sink->wait();
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_EQ(*spared.text + std::to_string(other->usage.completion_tokens), spared_alone);
    ASSERT_TRUE(comes_true([&] { return runtime.frontend().state().ready; })) << runtime.frontend().state().reason;
    EXPECT_NE(runtime.worker_pid(0), pid);
    EXPECT_EQ(answer(runtime, "hit", tone(3)), expected);
  }
}

TEST(Isolation, MetricsCoverTheOtherProcesses) {
  auto built = Runtime::build(config_of(Isolation::process, {model_of(kSeeded, "m")}));
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(answer(**built, "m", tone(2)).find("failed"), std::string::npos);
  const auto value_of = [&](const std::string& start) -> std::int64_t {
    const std::string text = (*built)->frontend().metrics_text();
    const auto at = text.find(start);
    return at == std::string::npos ? -1 : std::stoll(text.substr(text.find("} ", at) + 2));
  };
  const std::string used = "mstar_resource_used{worker=\"1\",model=\"m\",resource=\"decoder.kv\"}";
  EXPECT_GT(value_of("mstar_resource_total{worker=\"1\",model=\"m\",resource=\"decoder.kv\"}"), 0);
  EXPECT_TRUE(comes_true([&] { return value_of(used) == 0; }, 10s));
  EXPECT_GT(value_of("mstar_steps_total{worker=\"1\",model=\"m\",component=\"decoder\"}"), 0);
  const Call long_one = call(**built, "m", tone(600));
  EXPECT_TRUE(comes_true([&] { return value_of(used) > 0; }));
  (*built)->frontend().abort(long_one.id);
  EXPECT_FALSE(long_one.sink->wait());
  EXPECT_TRUE(comes_true([&] { return value_of(used) == 0; }));
}

TEST(Isolation, AWorkerThatCannotStartIsAnErrorAtOnce) {
  RuntimeConfig config = config_of(Isolation::process, {model_of(kSeeded, "m")});
  config.worker_program = "/bin/false";
  const auto ended = Runtime::build(config);
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message.find("ended with status 1"), std::string::npos) << ended.error().message;
  config.worker_program = "/nonexistent/mstar";
  const auto missing = Runtime::build(config);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("could not be started"), std::string::npos) << missing.error().message;
}

TEST(Isolation, NoProcessOutlivesTheRuntimeEvenInTheMiddleOfWork) {
  pid_t pid = -1;
  {
    auto built = Runtime::build(config_of(Isolation::process, {model_of(kSeeded, "m")}));
    ASSERT_TRUE(built) << built.error().message;
    pid = (*built)->worker_pid(0).value_or(-1);
    ASSERT_GT(pid, 0);
    const Call busy = call(**built, "m", tone(600));
    ASSERT_TRUE(comes_true([&] { return *busy.num_chunks > 0; }));
  }
  EXPECT_TRUE(is_gone(pid));
}

// Processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.rfind("PPid:", 0) == 0 && std::stoi(line.substr(5)) == parent) out.push_back(std::stoi(name));
  }
  return out;
}

// A whole server that is killed, without a chance to tell its workers.
TEST(Isolation, WorkersEndWithAServerThatIsKilled) {
  const fs::path config = fs::temp_directory_path() / ("mstar-isolation-" + std::to_string(::getpid()) + ".yaml");
  std::ofstream(config) << "isolation: process\nmodels:\n  - model: " << kSeeded << "\n    name: m\n";
  std::string words[] = {"mstar", "serve", config.string(), "--port", "0"};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), words[4].data(), nullptr};
  pid_t server = -1;
  ASSERT_EQ(posix_spawn(&server, MSTAR_BINARY, nullptr, nullptr, arguments, environ), 0);
  const bool started = comes_true([&] { return !children_of(server).empty(); });
  const auto workers = children_of(server);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  fs::remove(config);
  ASSERT_TRUE(started);
  for (const pid_t worker : workers) {
    const auto is_zombie = [&] {
      std::ifstream stat("/proc/" + std::to_string(worker) + "/stat");
      std::string text((std::istreambuf_iterator<char>(stat)), {});
      return text.find(") Z ") != text.npos;  // nobody reaps it where there is no init
    };
    EXPECT_TRUE(comes_true([&] { return is_gone(worker) || is_zombie(); }));
  }
}

}  // namespace
}  // namespace mstar::apps
