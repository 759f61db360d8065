#include "mstar/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mstar {
namespace {

using ::testing::HasSubstr;

Result<std::string> render(std::string_view source, std::string_view json = "{}", TemplateLimits limits = {}) {
  const auto variables = jinja::Value::parse_json(json);
  EXPECT_TRUE(variables);
  MSTAR_TRY_ASSIGN(const ChatTemplate compiled, ChatTemplate::compile(source));
  std::tm now{};
  now.tm_year = 125;
  now.tm_mday = 2;
  return compiled.render(variables->entries(), now, limits);
}

std::string text_of(std::string_view source, std::string_view json = "{}") {
  const auto out = render(source, json);
  return out ? *out : "error: " + out.error().message;
}

TEST(ChatTemplate, TrimsWhiteSpaceRoundTags) {
  EXPECT_EQ(text_of("  {% if true %}\n a\n  {%- endif %}\nb\n"), " ab");
  EXPECT_EQ(text_of("x {{ 1 -}} \n y {#- c -#}  z"), "x 1yz");
  EXPECT_EQ(text_of("{% raw %}{{ x }}{% endraw %}\n\n\n"), "{{ x }}\n");
}

TEST(ChatTemplate, KeepsLoopVariablesInTheirScope) {
  EXPECT_EQ(text_of("{% set x = 0 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}"), "1110");
  EXPECT_EQ(
      text_of("{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}"),
      "3");
  EXPECT_EQ(
      text_of("{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}:{{ i }}{{ ',' if not loop.last }}{% endfor %}"),
      "1:2,2:4");
}

// jinja2 decides before it runs which frame a name belongs to: what is set anywhere in a frame is that frame's own.
TEST(ChatTemplate, NamesBelongToTheFrameThatSetsThem) {
  const char* const given = R"({"x":"given","list":[1,2]})";
  EXPECT_EQ(text_of("{% for i in list %}[{{ x }}]{% endfor %}{% set x = 1 %}{{ x }}", given), "[][]1");
  EXPECT_EQ(text_of("{{ x }}{% set x = 1 %}{{ x }}", given), "given1");
  EXPECT_EQ(text_of("{% if false %}{% set x = 1 %}{% endif %}{{ x }}", given), "given");
  EXPECT_EQ(text_of("{% set x = x ~ '!' %}{{ x }}", given), "given!");
  EXPECT_EQ(text_of("{% set x %}{{ x }}{% endset %}({{ x }})", given), "()");
  EXPECT_EQ(text_of("{% set y = 'b' %}{% set x | replace(y, 'c') %}{% set y = 'a' %}ab{% endset %}{{ x }}{{ y }}"),
            "cbb");
  EXPECT_EQ(
      text_of("{% for i in list %}{% for j in list %}{{ loop.index }}{% endfor %}{{ loop.last }} {% endfor %}", given),
      "12False 12True ");
  EXPECT_THAT(text_of("{% for i in list %}{% set loop = 1 %}{% endfor %}", given), HasSubstr("the name loop"));
}

TEST(ChatTemplate, AsksALoopsConditionWhenItComesToTheItem) {
  EXPECT_EQ(text_of("{% set ns = namespace(on=true) %}{% for i in range(4) if ns.on %}{{ i }}{% set ns.on = i < 1 %}"
                    "{% endfor %}"),
            "01");
  EXPECT_EQ(text_of("{% for i in [2, 1, 0] if 2 // i %}{{ i }}{% break %}{% endfor %}"), "2");
  EXPECT_EQ(text_of("{% for i in range(5) if i is odd %}{{ loop.length }}{{ loop.nextitem }} {% endfor %}"), "23 2 ");
}

TEST(ChatTemplate, RefusesToPrintWhatPythonPrintsByItsAddress) {
  for (const char* source :
       {"{{ range }}", "{{ [1]|map('string') }}", "{{ [namespace()] }}", "{{ 'a' ~ joiner() }}", "{{ '%s' % (dict,) }}",
        "{{ '{}'.format(dict) }}", "{{ [dict]|join }}", "{{ dict|upper }}"}) {
    EXPECT_THAT(text_of(source), HasSubstr("is not supported")) << source;
  }
}

TEST(ChatTemplate, PrintsAsPython) {
  EXPECT_EQ(text_of("{{ none }} {{ true }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 7 // -2 }} {{ 7 / 2 }}"),
            "None True 1.0 1e+16 1e-05 -4 3.5");
  EXPECT_EQ(text_of("{{ [1, 'a', \"it's\", (2,), {'k': none}] }}"), "[1, 'a', \"it's\", (2,), {'k': None}]");
  EXPECT_EQ(text_of("{{ x|tojson }}", R"({"x":{"b":[1,2.5,"ü<"],"a":null}})"), R"({"b": [1, 2.5, "ü<"], "a": null})");
  EXPECT_EQ(text_of("{{ {'a': [1]}|tojson(indent=2) }}"), "{\n  \"a\": [\n    1\n  ]\n}");
  EXPECT_EQ(text_of("{{ strftime_now('%d %b %Y') }}"), "02 Jan 2025");
}

// As jinja2 with json.dumps prints them.
TEST(ChatTemplate, IntegersUpTo64BitsWithoutASign) {
  const char* const json = R"({"t":{"maximum":18446744073709551615,"m":9223372036854775808,"k":9223372036854775807}})";
  EXPECT_EQ(text_of("{{ t|tojson }}", json),
            R"({"maximum": 18446744073709551615, "m": 9223372036854775808, "k": 9223372036854775807})");
  EXPECT_EQ(text_of("{{ t.maximum }} {{ t }}", json),
            "18446744073709551615 {'maximum': 18446744073709551615, 'm': 9223372036854775808, 'k': "
            "9223372036854775807}");
  EXPECT_EQ(text_of("{{ t.m is integer }} {{ t.m is number }} {{ t.m > 5 }} {{ t.m == 9223372036854775808.0 }} "
                    "{{ t.m < t.maximum }} {{ t.m == t.m }} {{ t.k < t.m }} {{ 'x' if t.m }}",
                    json),
            "True True True True True True True x");
  EXPECT_EQ(text_of("{{ t.m|int }} {{ t.m|abs }} {{ t.m|string }} {{ '%d'|format(t.maximum) }} {{ t.m * 1.0 }}", json),
            "9223372036854775808 9223372036854775808 9223372036854775808 18446744073709551615 9.223372036854776e+18");
  EXPECT_EQ(text_of("{{ {t.m: 1}[t.m] }}", json), "1");
  EXPECT_NE(text_of("{{ t.m + 1 }}", json).find("beyond 64 bits"), std::string::npos);
}

TEST(ChatTemplate, NamesTheLineOfAFailure) {
  const auto syntax = render("a\nb\n{% if x %}\n{{ 1 + }}\n{% endif %}");
  ASSERT_FALSE(syntax);
  EXPECT_EQ(syntax.error().code, Code::bad_model);
  EXPECT_NE(syntax.error().message.find("line 4"), std::string::npos) << syntax.error().message;
  const auto missing = render("\n\n{{ message.content }}");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message, "template line 3: 'message' is undefined");
}

TEST(ChatTemplate, PassesOnWhatTheTemplateRaises) {
  const auto out = render("{{ raise_exception('Roles must alternate: ' ~ 1) }}");
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, Code::invalid_request);
  EXPECT_EQ(out.error().message, "Roles must alternate: 1");
}

TEST(ChatTemplate, RefusesWhatTheSandboxRefuses) {
  for (const char* source : {"{{ messages.append(1) }}", "{% set _ = d.update(a=1) %}", "{{ ''.__class__.__mro__ }}",
                             "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ x.nothing.more }}",
                             "{{ range(1000000) }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{% break %}", "{{ x|nosuch }}"}) {
    EXPECT_FALSE(render(source, R"({"messages":[1],"d":{},"x":{}})")) << source;
  }
}

// Each would run for hours or take all memory.
TEST(ChatTemplate, StopsHostileTemplates) {
  for (const char* source : {
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "{{ 'x' * 99999999999 }}",
           "{{ [1] * 99999999999 }}",
           "{{ 'x'.center(99999999999) }}",
           "{{ '%99999999999d' % 1 }}",
           "{{ '{:99999999999}'.format(1) }}",
           "{{ 'a\nb'|indent(99999999999) }}",
           "{{ 'x'|center(99999999999) }}",
           "{{ [1]|batch(99999999999, 0)|list }}",
           "{{ [1]|slice(99999999999)|list }}",
           "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
           "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
           "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
           "{% set ns = namespace() %}{% for i in range(99999) %}{% for c in 'x' * 100000 %}{% endfor %}{% endfor %}",
       }) {
    const auto out = render(source);
    ASSERT_FALSE(out) << source;
  }
}

TEST(ChatTemplate, StopsDeepTemplates) {
  const auto repeat = [](std::string_view unit, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out.append(unit);
    return out;
  };
  EXPECT_FALSE(render("{{ " + repeat("(", 100000) + " }}"));
  EXPECT_FALSE(render("{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}"));
  EXPECT_FALSE(render("{{ " + repeat("-", 100000) + "1 }}"));
  EXPECT_FALSE(render("{{ " + repeat("not ", 100000) + "1 }}"));
  EXPECT_FALSE(render("{{ 1" + repeat(" + 1", 100000) + " }}"));
  EXPECT_FALSE(render("{{ x" + repeat("|trim", 100000) + " }}"));
  EXPECT_FALSE(render("{{ x" + repeat(".x", 100000) + " }}"));
  EXPECT_FALSE(render("{{ 1" + repeat(" if 1 else 1", 100000) + " }}"));
  EXPECT_FALSE(render(repeat("{% if 1 %}", 100000)));
  EXPECT_FALSE(render("{% for " + repeat("(", 100000) + " in x %}"));
  EXPECT_FALSE(render(std::string(2u << 20, 'x')));
  const std::string deep = R"({"x":)" + repeat("[", 500) + repeat("]", 500) + "}";
  EXPECT_FALSE(jinja::Value::parse_json(deep));
}

TEST(ChatTemplate, CountsStepsAndBytes) {
  TemplateLimits limits;
  limits.max_steps = 100;
  EXPECT_TRUE(render("{% for i in range(10) %}{{ i }}{% endfor %}", "{}", limits));
  const auto steps = render("{% for i in range(100) %}{{ i }}{% endfor %}", "{}", limits);
  ASSERT_FALSE(steps);
  EXPECT_EQ(steps.error().code, Code::exhausted);
  limits = {};
  limits.max_output_bytes = 10;
  EXPECT_TRUE(render("0123456789", "{}", limits));
  EXPECT_FALSE(render("01234567890", "{}", limits));
}

}  // namespace
}  // namespace mstar
