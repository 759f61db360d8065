#include "yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>

namespace mstar::apps {
namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxNodes = 100'000;
constexpr std::size_t kMaxFileBytes = 4 << 20;

std::string place(const std::string& file, int line, int column) {
  return file + ":" + std::to_string(line) + ":" + std::to_string(column) + ": ";
}

class Copier {
 public:
  explicit Copier(const std::string& file) : file_(file) {}

  Status copy(const YAML::Node& from, int depth, YamlNode& to) {
    to.line = from.Mark().line + 1;
    to.column = from.Mark().column + 1;
    if (depth > kMaxDepth) return fault(to, "more than " + std::to_string(kMaxDepth) + " levels");
    if (++num_nodes_ > kMaxNodes) return fault(to, "more than " + std::to_string(kMaxNodes) + " values");
    switch (from.Type()) {
      case YAML::NodeType::Scalar:
        to.kind = YamlNode::Kind::scalar;
        to.text = from.Scalar();
        to.quoted = from.Tag() == "!" || from.Tag() == "tag:yaml.org,2002:str";
        return ok_status();
      case YAML::NodeType::Sequence:
        to.kind = YamlNode::Kind::list;
        for (const YAML::Node& each : from) MSTAR_TRY(copy(each, depth + 1, to.items.emplace_back()));
        return ok_status();
      case YAML::NodeType::Map:
        return copy_map(from, depth, to);
      default:
        return ok_status();
    }
  }

 private:
  Status copy_map(const YAML::Node& from, int depth, YamlNode& to) {
    to.kind = YamlNode::Kind::map;
    std::set<std::string> keys;
    for (const auto& each : from) {
      YamlMember& member = to.members.emplace_back();
      member.line = each.first.Mark().line + 1;
      member.column = each.first.Mark().column + 1;
      if (!each.first.IsScalar()) return fault(member, "a key must be a word");
      member.key = each.first.Scalar();
      if (!keys.insert(member.key).second)
        return fault(member, "the key '" + member.key + "' stands here a second time");
      MSTAR_TRY(copy(each.second, depth + 1, member.value));
    }
    return ok_status();
  }
  template <class At>
  Status fault(const At& at, const std::string& message) const {
    return invalid_request(place(file_, at.line, at.column) + message);
  }

  const std::string& file_;
  std::size_t num_nodes_ = 0;
};

class DocumentCounter final : public YAML::EventHandler {
 public:
  int count = 0;
  YAML::Mark last;
  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count;
    last = mark;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

Result<YamlNode> parse_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxFileBytes) return invalid_request(file + ": larger than 4 MiB, which no configuration is");
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    DocumentCounter documents;
    // Not YAML::LoadAll: behind a stray bracket it finds documents without end.
    while (documents.count < 2 && parser.HandleNextDocument(documents)) {
    }
    if (documents.count > 1)
      return invalid_request(place(file, documents.last.line + 1, 1) + "a second document; put all into one");
    YamlNode out;
    if (documents.count == 0) return out;
    MSTAR_TRY(Copier(file).copy(YAML::Load(std::string(text)), 0, out));
    return out;
  } catch (const YAML::Exception& e) {
    if (e.mark.is_null()) return invalid_request(file + ": " + e.msg);
    return invalid_request(place(file, e.mark.line + 1, e.mark.column + 1) + e.msg);
  } catch (const std::exception& e) {
    return invalid_request(file + ": " + e.what());
  }
}

}  // namespace mstar::apps
