"""jinja2 as transformers sets it up for chat templates."""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 26, 9, 0, 0)


class TemplateRaised(jinja2.TemplateError):
    """What raise_exception throws."""


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the model wrote. The text is that of the body."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateRaised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def outcome(make):
    """{"text": ...}, {"raised": message} or {"error": what failed}."""
    try:
        return {"text": make()}
    except TemplateRaised as e:
        return {"raised": str(e)}
    except Exception as e:  # pylint: disable=broad-except
        return {"error": f"{type(e).__name__}: {e}"}


def render(env, source, variables):
    return outcome(lambda: env.from_string(source).render(**variables))


def render_all(env, source, cases):
    """The outcome of each of `cases` (name -> variables); the source is compiled once."""
    try:
        compiled = env.from_string(source)
    except jinja2.TemplateError:
        return {name: render(env, source, variables) for name, variables in cases.items()}
    return {name: outcome(lambda v=variables: compiled.render(**v)) for name, variables in cases.items()}
