#include "mstar/text/chat_template.h"

#include "mstar/text/jinja/parser.h"
#include "mstar/text/utf8.h"

namespace mstar {
namespace {
constexpr std::size_t kMaxSourceBytes = 256u << 10;
}

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::TemplateTree> tree) : tree_(std::move(tree)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source) {
  if (source.size() > kMaxSourceBytes) return bad_model("the chat template is longer than 256 KiB");
  if (!is_valid_utf8(source)) return bad_model("the chat template is not UTF-8");
  MSTAR_TRY_ASSIGN(jinja::TemplateTree tree, jinja::parse_template(source));
  return ChatTemplate(std::make_unique<const jinja::TemplateTree>(std::move(tree)));
}

Result<std::string> ChatTemplate::render(const TemplateVariables& variables, const std::tm& now,
                                         TemplateLimits limits) const {
  return jinja::Renderer(*tree_, variables, now, limits).run();
}

}  // namespace mstar
