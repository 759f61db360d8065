// Chat templates: the subset of Jinja that checkpoints ship, rendered as jinja2 does it under transformers' settings.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "mstar/base/result.h"
#include "mstar/text/jinja/renderer.h"
#include "mstar/text/jinja/value.h"

namespace mstar {

// What a template and its renderings may use up. A template comes from a checkpoint, so it may be hostile.
using TemplateLimits = jinja::RenderLimits;
using TemplateVariables = jinja::Dict;

// One compiled template. Thread: const methods from any thread, as long as `variables` is not shared between them.
// Move-only.
//
// What is there: for (with if, else, break, continue, loop.*), if, set (blocks, namespaces, tuples), macro, call,
// filter, with, raw, generation; jinja2's operators, slices, tests and filters but for random, pprint, xmlattr, urlize,
// urlencode, striptags, filesizeformat and wordwrap; the methods of str, dict and list that don't change them; range,
// dict, namespace, cycler, joiner, raise_exception, strftime_now; transformers' tojson. White space as trim_blocks and
// lstrip_blocks have it. Integers have 64 bits; `safe` changes nothing; a filter that gives an iterator does its work
// at once. Not there, and refused: extends, include, import, block, autoescape, recursive loops.
class ChatTemplate {
 public:
  // bad_model, with the line, when the template can't be read. At most 256 KiB.
  static Result<ChatTemplate> compile(std::string_view source);

  // `variables`: messages, tools, add_generation_prompt, bos_token, ... `now` is what strftime_now sees.
  // bad_model with the line where the template fails; invalid_request, with the template's own words, where it calls
  // raise_exception; exhausted beyond `limits`. O(steps + bytes built).
  Result<std::string> render(const TemplateVariables& variables, const std::tm& now, TemplateLimits limits = {}) const;

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::TemplateTree> tree);

  std::unique_ptr<const jinja::TemplateTree> tree_;
};

}  // namespace mstar
