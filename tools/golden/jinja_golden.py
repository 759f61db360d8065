#!/usr/bin/env python3
"""Writes tests/golden/jinja/template_cases.json: what jinja2 makes of the chat templates beside it.

  pip install jinja2==3.1.6
  tools/golden/jinja_golden.py

With --check BINARY (build target jinja_check) nothing is written: the templates of --templates DIR, any .jinja files, are
rendered by both and compared.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import jinja2

import jinja_oracle

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "jinja"

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather in a given \"place\".",
        "parameters": {"type": "object", "required": ["location"], "properties": {
            "location": {"type": "string", "description": "City & country, e.g. <Zürich>"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
            "days": {"type": "integer", "minimum": 1, "maximum": 14.5}}}}},
    {"type": "function", "function": {
        "name": "noop", "description": "", "parameters": {"type": "object", "properties": {}},
        "return": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": ["number", "null"]}}}}}},
]


def call(name, arguments, call_id="call_0001"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


CHAT = [user("Hi there"), assistant("Hello! \n"), user("  How are\nyou? 你好 'quoted' <b>&amp;</b>  ")]
SYSTEM = [{"role": "system", "content": "You are a pirate.\n"}]
TOOL_TURNS = [user("Weather in Zürich and Oslo?"),
              assistant("", tool_calls=[call("get_weather", {"location": "Zürich", "days": 2, "x": [1.5, True, None]}),
                                        call("get_weather", {"location": "Oslo"}, "call_0002")]),
              {"role": "tool", "name": "get_weather", "tool_call_id": "call_0001", "content": "{\"t\": 21}"},
              {"role": "tool", "name": "get_weather", "tool_call_id": "call_0002", "content": "rain"}]
THINK = [user("1+1?"), assistant("<think>\nEasy.\n</think>\n\n2"), user("2+2?"),
         assistant("4", reasoning_content="Two and two.", thinking="Two and two."), user("And 3+3?")]
PARTS = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
         {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image"},
                                      {"type": "text", "text": " And that?"}]},
         {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]

CONVERSATIONS = {
    "plain": {"messages": CHAT},
    "prompt": {"messages": CHAT, "add_generation_prompt": True},
    "system": {"messages": SYSTEM + CHAT, "add_generation_prompt": True},
    "system_last": {"messages": SYSTEM + CHAT[:2]},
    "tools": {"messages": SYSTEM + CHAT, "tools": TOOLS, "add_generation_prompt": True},
    "tools_no_system": {"messages": CHAT[:1], "tools": TOOLS, "add_generation_prompt": True},
    "tool_turns": {"messages": SYSTEM + TOOL_TURNS, "tools": TOOLS, "add_generation_prompt": True},
    "tool_text": {"messages": [user("x"), assistant(None, tool_calls=[call("noop", "{\"a\": 1}")]),
                               {"role": "tool", "name": "noop", "content": "ok", "tool_call_id": "call_0001"},
                               assistant("Done.")], "tools": TOOLS},
    "mistral_ids": {"messages": [user("x"), assistant("", tool_calls=[call("noop", {}, "abcdefghi")]),
                                 {"role": "tool", "name": "noop", "content": "ok", "tool_call_id": "abcdefghi"},
                                 assistant("Done."), user("More")], "tools": TOOLS},
    "thinking": {"messages": THINK, "add_generation_prompt": True},
    "no_thinking": {"messages": THINK, "add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "thinking_on": {"messages": THINK, "add_generation_prompt": True, "enable_thinking": True, "thinking": True,
                    "reasoning_effort": "high"},
    "parts": {"messages": PARTS, "add_generation_prompt": True},
    "documents": {"messages": CHAT, "add_generation_prompt": True,
                  "documents": [{"title": "A \"t\"", "text": "Text\nof A", "author": "me"}, {"title": "B", "text": "b"}]},
    "empty": {"messages": [], "add_generation_prompt": True},
    "odd_roles": {"messages": [assistant("I begin"), user("a"), user("b")]},
    "unknown_role": {"messages": [user("a"), {"role": "critic", "content": "b"}]},
    "date": {"messages": SYSTEM + CHAT, "date_string": "01 Jan 2025", "strftime_now": None},
    "dict_of_dicts": {"messages": CHAT, "tools": [TOOLS[0]["function"]], "add_generation_prompt": True},
    "continue": {"messages": CHAT[:1] + [assistant("And so")], "continue_final_message": True},
}
for variables in CONVERSATIONS.values():
    variables.setdefault("bos_token", "<s>")
    variables.setdefault("eos_token", "</s>")
    variables.setdefault("add_generation_prompt", False)
    variables.pop("strftime_now", None)


def same(expected, got):
    if "text" in expected:
        return expected["text"] == got.get("text")
    if "raised" in expected:
        return expected["raised"] == got.get("error")
    return "error" in got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=pathlib.Path, default=OUT / "templates")
    parser.add_argument("--check", type=pathlib.Path)
    args = parser.parse_args()
    env = jinja_oracle.environment()
    expected = {}
    for path in sorted(args.templates.glob("*.jinja")):
        source = path.read_bytes().decode()
        expected[path.stem] = jinja_oracle.render_all(env, source, CONVERSATIONS)
    if args.check:
        lines = [json.dumps({"template": (args.templates / f"{name}.jinja").read_bytes().decode(),
                             "variables": CONVERSATIONS[conversation]})
                 for name, answers in expected.items() for conversation in answers]
        done = subprocess.run([args.check], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
        got = iter(done.stdout.splitlines())
        wrong = texts = 0
        for name, answers in expected.items():
            for conversation, answer in answers.items():
                ours = json.loads(next(got))
                texts += "text" in answer
                if not same(answer, ours):
                    wrong += 1
                    print(f"{name} {conversation}\n  jinja2: {json.dumps(answer)}\n  ours:   {json.dumps(ours)}")
        print(f"{len(expected)} templates, {len(lines)} renderings ({texts} texts), {wrong} differ")
        sys.exit(wrong != 0)
    for answers in expected.values():
        for answer in answers.values():
            if "error" in answer:
                answer["error"] = True
    body = {"made_with": f"jinja2 {jinja2.__version__}", "conversations": CONVERSATIONS, "expected": expected}
    path = OUT / "template_cases.json"
    path.write_text(json.dumps(body, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes, {len(expected)} templates")


if __name__ == "__main__":
    main()
