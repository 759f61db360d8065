// Routing by prefix: the table alone, and a conductor that chooses by it.
#include "mstar/conductor/prefix_routes.h"

#include <gmock/gmock.h>

#include <numeric>

#include "mstar/conductor/conductor_fixture.h"

namespace mstar::conductor {
namespace {

constexpr int kBlock = 4;

std::vector<std::int32_t> count_from(std::int32_t first, std::size_t num) {
  std::vector<std::int32_t> out(num);
  std::iota(out.begin(), out.end(), first);
  return out;
}

TEST(PrefixRoutes, AChainTellsEachBeginningInWholeBlocks) {
  const auto ids = count_from(5, 11);
  const auto chain = PrefixRoutes::chain_of("", ids, kBlock);
  ASSERT_EQ(chain.size(), 2u);
  auto longer = ids;
  longer.push_back(99);
  const auto more = PrefixRoutes::chain_of("", longer, kBlock);
  ASSERT_EQ(more.size(), 3u);
  EXPECT_TRUE(std::equal(chain.begin(), chain.end(), more.begin()));
  auto other = ids;
  ++other[0];
  EXPECT_NE(PrefixRoutes::chain_of("", other, kBlock)[1], chain[1]);  // what is before counts
  EXPECT_NE(PrefixRoutes::chain_of("salt", ids, kBlock)[0], chain[0]);
  EXPECT_TRUE(PrefixRoutes::chain_of("", count_from(0, 3), kBlock).empty());
}

TEST(PrefixRoutes, KnowsTheLongestBeginningAndWhenItWasHad) {
  PrefixRoutes routes;
  const WorkerId one(1), two(2);
  const auto chain = PrefixRoutes::chain_of("", count_from(0, 16), kBlock);
  const PrefixRoutes::Chain half(chain.begin(), chain.begin() + 2);
  EXPECT_EQ(routes.num_known(one, chain), 0);
  const auto anyone = [](WorkerId) { return true; };
  EXPECT_FALSE(routes.find(chain, anyone));
  routes.note(one, half);
  routes.note(two, chain);
  EXPECT_EQ(routes.num_known(one, chain), 2);
  EXPECT_EQ(routes.num_known(two, chain), 4);
  EXPECT_EQ(routes.find(half, anyone), two);  // as much, and later
  routes.note(one, half);
  EXPECT_EQ(routes.find(half, anyone), one);
  EXPECT_EQ(routes.find(chain, anyone), two);  // more
  EXPECT_EQ(routes.find(chain, [&](WorkerId each) { return each == one; }), one);
  EXPECT_FALSE(routes.find(chain, [](WorkerId) { return false; }));
  routes.forget(two);
  EXPECT_EQ(routes.num_known(two, chain), 0);
  EXPECT_EQ(routes.find(chain, anyone), one);
}

// Beside a plain definition of both: for each replica its blocks by age.
TEST(PrefixRoutes, FindsWhatLookingAtEachReplicaWouldFind) {
  constexpr std::size_t kMost = 20;
  constexpr std::uint32_t kReplicas = 5;
  std::mt19937 random(3);
  PrefixRoutes routes(kMost);
  std::vector<std::map<std::uint64_t, int>> had(kReplicas);  // block to when
  std::map<std::uint64_t, std::size_t> depth_of;             // a block's place in its chain
  const auto prompt = [&] {
    std::vector<std::int32_t> ids = count_from(static_cast<std::int32_t>(random() % 4) * 1000, 9 + random() % 19);
    if (random() % 2) ids.back() = ids[8] = static_cast<std::int32_t>(random() % 3);
    return PrefixRoutes::chain_of("", ids, kBlock);
  };
  const auto known = [&](std::uint32_t replica, const PrefixRoutes::Chain& chain) {
    std::pair<int, int> out;  // blocks, and when it had the last of them
    for (const std::uint64_t block : chain) {
      const auto at = had[replica].find(block);
      if (at == had[replica].end()) break;
      out = {out.first + 1, at->second};
    }
    return out;
  };
  int num_found = 0;
  for (int turn = 1; turn < 4000; ++turn) {
    const auto chain = prompt();
    const auto forbidden = static_cast<std::uint32_t>(random() % (2 * kReplicas));
    std::pair<int, int> most;
    std::optional<WorkerId> wanted;
    for (std::uint32_t replica = 0; replica < kReplicas; ++replica) {
      ASSERT_EQ(routes.num_known(WorkerId(replica), chain), known(replica, chain).first);
      ASSERT_EQ(routes.num_blocks(WorkerId(replica)), had[replica].size());
      if (replica == forbidden || known(replica, chain) <= most) continue;
      most = known(replica, chain);
      wanted = WorkerId(replica);
    }
    ASSERT_EQ(routes.find(chain, [&](WorkerId each) { return each.value != forbidden; }), wanted) << turn;
    num_found += wanted.has_value();
    const auto to = static_cast<std::uint32_t>(random() % kReplicas);
    if (random() % 50 == 0) {
      routes.forget(WorkerId(to));
      had[to].clear();
      continue;
    }
    routes.note(WorkerId(to), chain);
    for (std::size_t i = 0; i < chain.size(); ++i) {
      had[to][chain[i]] = turn;
      depth_of[chain[i]] = i;
    }
    // Those that it had longest ago are forgotten, of one prompt the last ones first: blocks deep in a chain.
    while (had[to].size() > kMost) {
      std::uint64_t oldest = 0;
      int when = turn + 1;
      std::size_t depth = 0;
      for (const auto& [block, at] : had[to]) {
        const std::size_t own = depth_of[block];
        if (at < when || (at == when && own > depth)) {
          oldest = block;
          when = at;
          depth = own;
        }
      }
      had[to].erase(oldest);
    }
  }
  EXPECT_GT(num_found, 2000);
}

TEST(PrefixRoutes, TablesAreBoundedAndForgetTheEndsOfOldPromptsFirst) {
  PrefixRoutes routes(6);
  const WorkerId one(1);
  const auto first = PrefixRoutes::chain_of("", count_from(0, 16), kBlock);
  const auto second = PrefixRoutes::chain_of("", count_from(100, 16), kBlock);
  routes.note(one, first);
  routes.note(one, second);
  EXPECT_EQ(routes.num_blocks(one), 6u);
  EXPECT_EQ(routes.num_known(one, second), 4);
  EXPECT_EQ(routes.num_known(one, first), 2);
  const auto huge = PrefixRoutes::chain_of("", count_from(0, 4000), kBlock);
  routes.note(one, huge);
  EXPECT_EQ(routes.num_blocks(one), 6u);
  EXPECT_EQ(routes.num_known(one, huge), 6);
}

// One decoder with a prefix cache on three replicas; each byte of a request's text is an id.
class PrefixRoutingTest : public ::testing::Test {
 protected:
  PrefixRoutingTest() {
    const decl::PortRef prompt =
        decl_.port({.name = "prompt", .dtype = DType::i32, .axes = {{"tokens"}}, .travel = {decl::FromRequest{}}});
    const decl::ResourceRef kv = decl_.resource(decl::PagedKv{.name = "kv",
                                                              .layers = 1,
                                                              .kv_heads = 1,
                                                              .head_dim = 1,
                                                              .page_tokens = kBlock,
                                                              .max_tokens_per_request = 64,
                                                              .prefix_cache = true});
    const decl::PortRef out = decl_.port({.name = "out", .dtype = DType::utf8, .travel = {decl::ToClient{}}});
    const auto decoder = decl_.component(decl::DeviceComponent{.name = "decoder", .uses = {kv}});
    const decl::WalkRef walk = decl_.walk("walk", decl::Run{decoder, {prompt}, {out}});
    decl_.partition(
        {.walks = {walk}, .plan = [walk](const decl::RequestParams&) { return std::make_unique<Once>(walk); }});
    decl::Surface surface{.route = decl::Route::generate};
    surface.intake = [prompt](const ApiRequest& api) -> Result<decl::Intake> {
      decl::Intake intake;
      std::vector<std::int32_t> ids(api.text.begin(), api.text.end());
      intake.inputs[prompt] = {HostValue::i32(ids)};
      return intake;
    };
    decl_.surface(surface);
    auto made = graph::CompiledModel::compile(decl_);
    EXPECT_TRUE(made);
    if (made) compiled_.emplace(std::move(*made));
  }
  class Once final : public decl::Plan {
   public:
    explicit Once(decl::WalkRef walk) : walk_(walk) {}
    Result<decl::Decision> next(const decl::PlanView& view) override {
      if (view.num_walks == 0) return decl::Decision(decl::NextWalk{.walk = walk_});
      return decl::Decision(decl::Done{});
    }

   private:
    decl::WalkRef walk_;
  };

  void make(Routing routing, int excess, std::uint64_t seed) {
    ConductorOptions options{
        .max_concurrent_requests = 1000, .routing = routing, .prefix_excess = excess, .seed = seed};
    NodeGroup group{.name = "decoder", .components = {decl::ComponentRef(0)}, .replicas = {}};
    for (std::uint32_t worker = 1; worker <= 3; ++worker) {
      group.replicas.emplace_back(worker);
      options.workers.emplace_back(worker);
    }
    options.models.push_back(ServedDeployment{.name = "m", .aliases = {}, .compiled = &*compiled_, .groups = {group}});
    mesh_.sent.clear();
    loads_.clear();
    conductor_ = std::make_unique<Conductor>(std::move(options), mesh_);
    for (std::uint32_t worker = 1; worker <= 3; ++worker) conductor_->receive(wire::WorkerReady{WorkerId(worker)});
    conductor_->poll();
  }
  std::pair<RequestId, std::uint32_t> submit(const std::string& text) {
    const auto id = conductor_->submit({.model = "m", .text = text}, std::make_shared<RecordingSink>());
    EXPECT_TRUE(id);
    conductor_->poll();
    const std::uint32_t worker = mesh_.sent[mesh_.sent.size() - 2].first;  // the request, and its first walk
    ++loads_[worker];
    return {*id, worker};
  }
  void finish(RequestId id, std::uint32_t worker) {
    conductor_->receive(wire::RequestFailed{id, internal_error("x")});
    conductor_->receive(wire::Removed{id, WorkerId(worker)});
    conductor_->poll();
    --loads_[worker];
  }
  int load(std::uint32_t worker) { return loads_[worker]; }

  decl::Decl decl_{"m"};
  std::optional<graph::CompiledModel> compiled_;
  RecordingMesh mesh_;
  std::unique_ptr<Conductor> conductor_;
  std::map<std::uint32_t, int> loads_;
};

TEST_F(PrefixRoutingTest, ARequestFollowsTheLongestPrefixWithinTheBound) {
  make(Routing::prefix, 2, 1);
  const std::uint32_t home = submit("abcdefgh-1").second;
  EXPECT_EQ(submit("abcdefgh-2").second, home);
  EXPECT_EQ(submit("abcdefgh-3").second, home);  // 2 more than the others
  EXPECT_NE(submit("abcdefgh-4").second, home);  // 3 more: too many
  EXPECT_NE(conductor_->metrics_text().find("mstar_routed_by_prefix_total 2\n"), std::string::npos);
}

TEST_F(PrefixRoutingTest, ARestartedWorkerHasNoPrefixes) {
  make(Routing::prefix, 100, 1);
  const std::uint32_t home = submit("abcdefgh-1").second;
  conductor_->receive(wire::WorkerFailed{WorkerId(home), unavailable("gone")});
  conductor_->receive(wire::WorkerReady{WorkerId(home)});
  conductor_->poll();
  submit("abcdefgh-2");
  EXPECT_NE(conductor_->metrics_text().find("mstar_routed_by_prefix_total 0\n"), std::string::npos);
}

// Clients whose turns grow, and one beginning that most share: more is found than by load alone, and the bound holds.
TEST_F(PrefixRoutingTest, MoreIsFoundAndNobodyIsOverloaded) {
  const auto run = [&](Routing routing, std::uint64_t seed, int excess) {
    make(routing, excess, seed);
    std::mt19937_64 random(seed);
    std::map<std::uint32_t, std::set<std::uint64_t>> caches;
    std::vector<std::pair<RequestId, std::uint32_t>> live;
    std::vector<std::string> chats(12);
    std::size_t found = 0;
    for (int i = 0; i < 600; ++i) {
      if (live.size() > 24 || (!live.empty() && random() % 2)) {
        const auto at = static_cast<std::ptrdiff_t>(random() % live.size());
        finish(live[static_cast<std::size_t>(at)].first, live[static_cast<std::size_t>(at)].second);
        live.erase(live.begin() + at);
        continue;
      }
      const std::size_t who = random() % 3 ? random() % chats.size() : 0;  // a hot one
      std::string& chat = chats[who];
      if (chat.empty() || chat.size() > 80) chat = "chat " + std::to_string(who) + ": ";
      chat += "more " + std::to_string(random() % 10) + " ";
      std::vector<int> before;
      for (std::uint32_t worker = 1; worker <= 3; ++worker) before.push_back(load(worker));
      live.push_back(submit(chat));
      const std::uint32_t worker = live.back().second;
      EXPECT_LE(before[worker - 1], *std::min_element(before.begin(), before.end()) + excess);
      const std::vector<std::int32_t> ids(chat.begin(), chat.end());
      for (const std::uint64_t block : PrefixRoutes::chain_of("", ids, kBlock)) {
        found += caches[worker].count(block);
        caches[worker].insert(block);
      }
    }
    return found;
  };
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const std::size_t by_load = run(Routing::least_loaded, seed, 0);
    const std::size_t by_prefix = run(Routing::prefix, seed, 4);
    EXPECT_GT(by_prefix, by_load) << seed;
  }
}

}  // namespace
}  // namespace mstar::conductor
