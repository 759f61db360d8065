// What a worker's process may do to the others: nothing. Deaths, hangs, failed starts, and the end of the server.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include "isolation_support.h"

namespace mstar::apps {
namespace {

TEST(IsolationFaults, AKilledWorkerTakesItsRequestsAlongAndComesBack) {
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

TEST(IsolationFaults, AWorkerThatStandsStillIsKilledAndStartedAgain) {
  RuntimeConfig config = config_of(Isolation::process, {model_of(kSeeded, "m")});
  config.hang_timeout = 4s;
  auto built = Runtime::build(config);
  ASSERT_TRUE(built) << built.error().message;
  const std::string expected = answer(**built, "m", tone(3));
  const auto pid = (*built)->worker_pid(0);
  ASSERT_TRUE(pid);
  const Call hit = call(**built, "m", tone(900));
  ASSERT_TRUE(comes_true([&] { return *hit.num_chunks > 0; }));
  ASSERT_EQ(::kill(*pid, SIGSTOP), 0);
  const auto end = hit.sink->wait();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, Code::unavailable);
  EXPECT_NE(end.error().message.find("stood still for 4 s"), std::string::npos) << end.error().message;
  ASSERT_TRUE(comes_true([&] { return (*built)->frontend().state().ready; }));
  EXPECT_TRUE(is_gone(*pid));
  EXPECT_EQ(answer(**built, "m", tone(3)), expected);
  EXPECT_EQ(metric(**built, "mstar_worker_restarts_total{worker=\"1\"}"), 1);
}

// Whatever it was doing when it was stopped: starting, loading, or in service already.
TEST(IsolationFaults, AWorkerThatIsStoppedAsSoonAsItIsStartedAgainIsReplaced) {
  RuntimeConfig config = config_of(Isolation::process, {model_of(kSeeded, "m")});
  config.hang_timeout = 4s;
  config.load_timeout = 4s;
  auto built = Runtime::build(config);
  ASSERT_TRUE(built) << built.error().message;
  const std::string expected = answer(**built, "m", tone(3));
  const auto first = (*built)->worker_pid(0);
  ASSERT_EQ(::kill(first.value_or(0), SIGKILL), 0);
  std::optional<pid_t> second;
  ASSERT_TRUE(comes_true([&] { return (second = (*built)->worker_pid(0)) && second != first; }));
  ASSERT_EQ(::kill(*second, SIGSTOP), 0);
  ASSERT_TRUE(comes_true([&] { return metric(**built, "mstar_worker_restarts_total{worker=\"1\"}") == 2; }));
  ASSERT_TRUE(comes_true([&] { return (*built)->frontend().state().ready; }));
  EXPECT_TRUE(is_gone(*second));
  EXPECT_EQ(answer(**built, "m", tone(3)), expected);
}

// Of two workers that share each request, the one that stays gets a socket to the new process of the other.
TEST(IsolationFaults, WorkersThatShareRequestsFindEachOtherAgain) {
  ModelConfig split{.model = kSeeded, .name = "m"};
  split.node_groups = {{.components = {"features", "encoder"}, .ranks = {0}},
                       {.components = {"cross", "decoder"}, .ranks = {1}}};
  auto built = Runtime::build(config_of(Isolation::process, {split}));
  ASSERT_TRUE(built) << built.error().message;
  const std::string expected = answer(**built, "m", tone(3));
  for (const int rank : {0, 1, 0}) {
    const Call hit = call(**built, "m", tone(900));
    ASSERT_TRUE(comes_true([&] { return *hit.num_chunks > 0; }));
    const auto stays = (*built)->worker_pid(1 - rank);
    ASSERT_EQ(::kill((*built)->worker_pid(rank).value_or(0), SIGKILL), 0);
    const auto end = hit.sink->wait();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, Code::unavailable);
    ASSERT_TRUE(comes_true([&] { return (*built)->frontend().state().ready; }));
    EXPECT_EQ((*built)->worker_pid(1 - rank), stays);
    EXPECT_EQ(answer(**built, "m", tone(3)), expected);
    // What the failed request held on the worker that stays is free again.
    const std::string used = "mstar_resource_used{worker=\"2\",model=\"m\",resource=\"decoder.kv\"}";
    EXPECT_TRUE(comes_true([&] { return metric(**built, used) == 0; })) << metric(**built, used);
  }
}

TEST(IsolationFaults, DeathsLeaveNoDescriptorsAndNoZombies) {
  std::size_t before = 0;
  const auto num_open = [] {
    std::size_t count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  {
    ModelConfig split{.model = kSeeded, .name = "m"};
    split.node_groups = {{.components = {"encoder"}, .ranks = {0}}, {.components = {"cross", "decoder"}, .ranks = {1}}};
    auto built = Runtime::build(config_of(Isolation::process, {split}));
    ASSERT_TRUE(built) << built.error().message;
    before = num_open();
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(::kill((*built)->worker_pid(i % 2).value_or(0), SIGKILL), 0);
      ASSERT_TRUE(comes_true([&] { return !(*built)->frontend().state().ready; }));
      ASSERT_TRUE(comes_true([&] { return (*built)->frontend().state().ready; }));
    }
    EXPECT_EQ(num_open(), before);
    EXPECT_EQ(children_of(::getpid()).size(), 2u);
  }
  EXPECT_LT(num_open(), before);
  EXPECT_TRUE(children_of(::getpid()).empty());
}

// A copy of the seeded model in a directory of its own.
class OwnModel {
 public:
  OwnModel() : path_(fs::temp_directory_path() / ("mstar-isolation-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::copy(kSeeded, path_);
  }
  ~OwnModel() { fs::remove_all(path_); }
  fs::path path() const { return path_; }
  // The file has no tensor of this name any more.
  void rename_tensor(std::string name) const {
    std::ifstream in(path_ / "model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const auto at = bytes.find(name);
    ASSERT_NE(at, std::string::npos);
    bytes[at] = 'X';
    std::ofstream(path_ / "model.safetensors", std::ios::binary) << bytes;
  }

 private:
  fs::path path_;
};

TEST(IsolationFaults, AWorkerThatCannotLoadNamesTheCause) {
  const OwnModel model;
  model.rename_tensor("model.decoder.layers.0.fc1.weight");
  const auto built = Runtime::build(config_of(Isolation::process, {model_of(model.path(), "m")}));
  ASSERT_FALSE(built);
  EXPECT_NE(built.error().message.find("decoder.layers.0.fc1.weight"), std::string::npos) << built.error().message;
  EXPECT_TRUE(children_of(::getpid()).empty());
}

TEST(IsolationFaults, AWorkerThatCannotLoadAgainIsTriedUntilItCan) {
  const OwnModel model;
  auto built = Runtime::build(config_of(Isolation::process, {model_of(model.path(), "m")}));
  ASSERT_TRUE(built) << built.error().message;
  const std::string expected = answer(**built, "m", tone(2));
  const fs::path file = model.path() / "config.json", away = model.path() / "away";
  fs::rename(file, away);
  ASSERT_EQ(::kill((*built)->worker_pid(0).value_or(0), SIGKILL), 0);
  const auto says = [&](const std::string& text) {
    const auto state = (*built)->frontend().state();
    return !state.ready && state.reason.find(text) != std::string::npos;
  };
  EXPECT_TRUE(comes_true([&] { return says("config.json"); })) << (*built)->frontend().state().reason;
  decl::ApiRequest request{.route = decl::Route::audio_transcriptions, .model = "m"};
  request.media.push_back({.field = "file", .file_name = "tone.wav", .bytes = HostValue::shared_blob(tone(1))});
  const auto refused = (*built)->frontend().submit(std::move(request), std::make_shared<WaitingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unavailable);
  fs::rename(away, file);
  ASSERT_TRUE(comes_true([&] { return (*built)->frontend().state().ready; })) << (*built)->frontend().state().reason;
  EXPECT_EQ(answer(**built, "m", tone(2)), expected);
}

TEST(IsolationFaults, AWorkerThatCannotStartIsAnErrorAtOnce) {
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

TEST(IsolationFaults, NoProcessOutlivesTheRuntimeEvenInTheMiddleOfWork) {
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

// A whole server that is killed, without a chance to tell its workers.
TEST(IsolationFaults, WorkersEndWithAServerThatIsKilled) {
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
