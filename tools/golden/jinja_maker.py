"""Random chat templates, and variables for them, by a seed: most of them render, many fail on purpose."""
import random

STRINGS = ["", "a", "user", "assistant", "Hello, World", "  pad \n", "x y  z", "a,b,,c", "<b>\"q\" & 'r'</b>", "Straße ǅ ﬁ",
           "İi ÀÉ é", "日本語 テキスト", "👩‍👩‍👧 emoji", "line1\nline2\r\nline3\n\n  four", "12", "-3.50", "0x1f", "1_000", "true", "\tTab",
           "a\u00a0b\u2028c", "%s and %d", "{} {0} {x}", "\\n\\", "{{ not }} {% raw %}", "AbC-dEf(gHi)", "ß", "ΑΣ ΟΔΟΣ", "nan"]
NAMES = ["s1", "s2", "i1", "i2", "f1", "b1", "none1", "list1", "list2", "dict1", "messages", "missing"]
KEYS = ["role", "content", "a", "b", "items", "x", "tool_calls", "get"]
MAPS = ["'upper'", "'string'", "'length'", "'trim'", "'tojson'", "attribute='role'", "attribute='a'", "attribute='content.0'",
        "attribute='x.y'", "attribute='x', default='?'"]
SELECTS = ["", "'string'", "'defined'", "'odd'", "'ne', 1", "'mapping'"]
SELECT_ATTRS = ["'role', 'equalto', 'user'", "'content'", "'tool_calls', 'defined'", "'role', 'in', ['user', 'tool']"]


class Maker:
    def __init__(self, rnd):
        self.rnd = rnd
        self.names = list(NAMES)
        self.macros = []
        self.fresh = 0
        self.in_loop = 0

    def pick(self, *options):
        return self.rnd.choice(options)

    def chance(self, p):
        return self.rnd.random() < p

    def quoted(self, text):
        q = self.pick("'", '"')
        out = text.replace("\\", "\\\\").replace("\n", self.pick("\\n", "\n")).replace("\r", "\\r").replace(q, "\\" + q)
        if self.chance(.1):
            out = "".join(c if ord(c) < 128 else (f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}") for c in out)
        return q + out + q

    def name(self):
        return self.rnd.choice(self.names)

    # -- expressions ------------------------------------------------------------------------------------------------
    def expr(self, d, kind=None):
        if kind is None or self.chance(.04):
            kind = self.pick("str", "str", "int", "float", "bool", "list", "dict", "any")
        if d <= 0:
            return self.leaf(kind)
        return getattr(self, "expr_" + kind)(d - 1)

    def leaf(self, kind):
        r = self.rnd
        if kind == "str":
            return self.pick("s1", "s2", self.quoted(r.choice(STRINGS)), self.quoted(r.choice(STRINGS)))
        if kind == "int":
            return self.pick("i1", "i2", str(r.randint(0, 12)), str(r.randint(-5, 300)), "loop.index" if self.in_loop else "0")
        if kind == "float":
            return self.pick("f1", f"{r.uniform(-10, 10):.3f}", "1e15", "2.5e-7", "0.1", "3.0", "1.5E3")
        if kind == "bool":
            return self.pick("true", "false", "b1", "True", "none1 is none", "loop.first" if self.in_loop else "False")
        if kind == "list":
            return self.pick("list1", "list2", "messages", "[]", "[1, 2, 3]", "['b', 'a', 'B']", "range(4)", "(1, 'x')", "()")
        if kind == "dict":
            return self.pick("dict1", "messages[0]", "{}", "{'a': 1, 'b': [2]}", "{'x': none, 1: 'one'}")
        return self.pick(self.name(), self.name(), "none", "None", self.leaf("str"), self.leaf("list"))

    def expr_str(self, d):
        e = self.expr
        return self.pick(
            lambda: f"{e(d, 'str')} + {e(d, 'str')}",
            lambda: f"{e(d, 'str')} ~ {e(d)} ~ {e(d, 'int')}",
            lambda: f"({e(d, 'str')})[{self.slice(d)}]",
            lambda: f"({e(d, 'str')})[{e(d, 'int')}]",
            lambda: f"({e(d, 'str')}) * {self.rnd.randint(-1, 3)}",
            lambda: f"({e(d, 'str')} if {e(d, 'bool')} else {e(d, 'str')})",
            lambda: f"({e(d, 'str')} if {e(d, 'bool')})",
            lambda: f"({e(d, 'str')})|{self.text_filter(d)}",
            lambda: f"({e(d, 'str')})|{self.text_filter(d)}",
            lambda: f"({e(d, 'str')}).{self.text_method(d)}",
            lambda: f"({e(d, 'str')}).{self.text_method(d)}",
            lambda: f"({e(d, 'list')})|join({self.pick('', self.leaf('str'))})",
            lambda: f"({e(d)})|tojson{self.pick('', '', '(indent=2)', '(indent=4)', '(ensure_ascii=true)', '(sort_keys=true)')}",
            lambda: f"({e(d)})|string",
            lambda: f"{self.quoted(self.pick('%s-%s', '%d %s', '%5.2f|%r', '%-6s|%03d', '%x %s', '%e %g'))}"
                    f" % ({e(d, self.pick('int', 'float', 'str'))}, {e(d)})",
            lambda: f"{self.quoted(self.pick('{}-{}', '{1} {0}', '{:>6}|{:<5}|', '{0!r} {1:^8}', '{:.2f} {}', '{:,} {:+d}'))}"
                    f".format({e(d, self.pick('int', 'float', 'str'))}, {e(d, self.pick('int', 'str'))})",
            lambda: f"({e(d, 'dict')}).{self.rnd.choice(KEYS)}",
            lambda: f"({e(d, 'dict')}).get({self.leaf('str')}, {e(d, 'str')})",
            lambda: f"({e(d, 'any')})|default({e(d, 'str')}{self.pick('', ', true')})",
            lambda: f"({e(d, 'list')})|first",
            lambda: f"({e(d, 'list')})|last",
            lambda: self.macro_call(d),
        )()

    def text_filter(self, d):
        return self.pick("trim", "upper", "lower", "title", "capitalize", "length", "list", "reverse", "wordcount", "int",
                         "float", "string", f"replace({self.leaf('str')}, {self.leaf('str')})", "trim('a ')",
                         f"replace({self.leaf('str')}, {self.leaf('str')}, 1)", "indent", "indent(2, true)",
                         "indent(width=3, blank=true)", "indent('> ')", "center(11)", "truncate(5, true)", "truncate(8)",
                         "truncate(6, false, '!', 0)", "tojson", "default('z')", "first", "last", "unique|list", "sort",
                         "int(7, 16)", "float(1.5)", "count", "format(1, 2)")

    def text_method(self, d):
        s = self.leaf("str")
        return self.pick("strip()", "lstrip()", "rstrip()", f"strip({s})", f"lstrip({s})", "rstrip('\\n')", "split()",
                         f"split({s})", f"split({s}, 1)", f"split({s})[0]", f"split({s})[-1]", f"rsplit({s}, 1)",
                         f"startswith({s})", f"endswith({s})", f"startswith(('a', {s}))", f"replace({s}, {s})",
                         f"replace({s}, 'Q', 1)", "upper()", "lower()", "title()", "capitalize()", "swapcase()",
                         f"find({s})", f"rfind({s})", f"count({s})", f"index({s})", "isdigit()", "isalpha()", "isupper()",
                         "islower()", "isspace()", "isalnum()", "isnumeric()", "splitlines()", "splitlines(true)",
                         f"partition({s})", f"rpartition({s})", f"removeprefix({s})", f"removesuffix({s})", "zfill(6)",
                         "ljust(5, '*')", "rjust(7)", "center(8)", f"join({self.leaf('list')})", "nosuch", "split(none, 1)",
                         "split(',', -1)")

    def slice(self, d):
        part = lambda: self.pick("", "", str(self.rnd.randint(-4, 6)), "none", "i1")
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('', '1', '2', '-1', '-2')}", "::-1")

    def expr_int(self, d):
        e = self.expr
        return self.pick(
            lambda: f"{e(d, 'int')} {self.pick('+', '-', '*', '//', '%')} {e(d, 'int')}",
            lambda: f"({e(d, 'int')}) {self.pick('+', '*', '%', '//')} ({e(d, 'int')})",
            lambda: f"-{e(d, 'int')}", lambda: f"+{e(d, 'int')}|abs", lambda: f"2 ** {self.rnd.randint(0, 9)}",
            lambda: f"({e(d, self.pick('str', 'list', 'dict'))})|length",
            lambda: f"({e(d, 'str')})|int", lambda: f"({e(d, 'float')})|int", lambda: f"({e(d, 'list')})|sum",
            lambda: f"({e(d, 'list')}).index({e(d, 'int')})", lambda: f"({e(d, 'list')}).count({e(d, 'int')})",
            lambda: f"({e(d, 'list')})|{self.pick('min', 'max')}",
            lambda: f"({e(d, 'str')}).find({self.leaf('str')})",
        )()

    def expr_float(self, d):
        e = self.expr
        return self.pick(
            lambda: f"{e(d, 'float')} {self.pick('+', '-', '*', '/', '//', '%')} {e(d, self.pick('float', 'int'))}",
            lambda: f"{e(d, 'int')} / {e(d, 'int')}", lambda: f"({e(d, 'float')})|round({self.pick('', '1', '2', '3')})",
            lambda: f"({e(d, 'float')})|round({self.pick('0', '1')}, '{self.pick('ceil', 'floor')}')",
            lambda: f"({e(d, 'str')})|float", lambda: f"({e(d, 'float')})|abs", lambda: f"{e(d, 'float')} ** 2",
            lambda: f"-{e(d, 'float')}",
        )()

    def expr_bool(self, d):
        e = self.expr
        kind = self.pick("str", "int", "float", "list", "any")
        test = self.pick("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true",
                         "false", "integer", "float", "callable", "lower", "upper", "odd", "even", "divisibleby 2",
                         "divisibleby(3)", f"eq {self.leaf('int')}", f"in {self.leaf('list')}", f"sameas {self.leaf('bool')}",
                         f"equalto({self.leaf('str')})", "gt 2", "le(3)", "ne none", "filter", "test")
        return self.pick(
            lambda: f"{e(d, kind)} {self.pick('==', '!=', '<', '<=', '>', '>=')} {e(d, kind)}",
            lambda: f"{e(d, 'int')} < {e(d, 'int')} {self.pick('<=', '!=', '<')} {e(d, 'int')}",
            lambda: f"{e(d, 'str')} {self.pick('in', 'not in')} {e(d, self.pick('str', 'list', 'dict'))}",
            lambda: f"({e(d)}) is {self.pick('', 'not ')}{test}",
            lambda: f"{self.name()} is {self.pick('', 'not ')}{test}",
            lambda: f"not {e(d, 'bool')}", lambda: f"not ({e(d)})",
            lambda: f"({e(d)}) {self.pick('and', 'or')} ({e(d)})",
            lambda: f"{e(d, 'bool')} {self.pick('and', 'or')} {e(d, 'bool')} {self.pick('and', 'or')} {e(d, 'bool')}",
            lambda: f"({e(d, 'str')}).startswith({self.leaf('str')})",
        )()

    def expr_list(self, d):
        e = self.expr
        return self.pick(
            lambda: f"[{', '.join(e(d) for _ in range(self.rnd.randint(0, 3)))}]",
            lambda: f"({', '.join(e(d) for _ in range(self.rnd.randint(2, 3)))})",
            lambda: f"({e(d, 'list')})[{self.slice(d)}]", lambda: f"{e(d, 'list')} + {e(d, 'list')}",
            lambda: f"({e(d, 'list')}) * {self.rnd.randint(-1, 2)}",
            lambda: f"({e(d, 'list')})|{self.pick('list', 'sort', 'reverse|list', 'unique|list', 'sort(reverse=true)')}",
            lambda: f"({e(d, 'list')})|map({self.pick(*MAPS)})|list",
            lambda: f"({e(d, 'list')})|{self.pick('select', 'reject')}({self.pick(*SELECTS)})|list",
            lambda: f"messages|{self.pick('selectattr', 'rejectattr')}({self.pick(*SELECT_ATTRS)})|list",
            lambda: f"({e(d, 'str')}).split({self.pick('', self.leaf('str'))})",
            lambda: f"({e(d, 'dict')})|{self.pick('items|list', 'dictsort', 'list', 'dictsort(reverse=true)')}",
            lambda: f"({e(d, 'dict')}).{self.pick('items()', 'keys()', 'values()')}|list",
            lambda: f"range({', '.join(self.expr(0, 'int') for _ in range(self.rnd.randint(1, 3)))})|list",
            lambda: f"({e(d, 'list')})|{self.pick('batch(2)', 'batch(2, 0)', 'slice(2)')}|list",
            lambda: f"({e(d, 'str')})|list", lambda: f"({e(d, 'dict')}).tool_calls",
        )()

    def expr_dict(self, d):
        e = self.expr
        return self.pick(
            lambda: "{" + ", ".join(f"{self.pick(self.quoted(self.rnd.choice(KEYS)), str(self.rnd.randint(0, 2)), 'true')}: {e(d)}"
                                    for _ in range(self.rnd.randint(0, 3))) + "}",
            lambda: f"messages[{e(d, 'int')}]", lambda: f"dict({self.rnd.choice(KEYS)}={e(d)})",
            lambda: f"dict({e(d, 'dict')}, z={e(d)})", lambda: f"({e(d, 'dict')}).copy()",
            lambda: f"({e(d, 'list')})|first",
        )()

    def expr_any(self, d):
        e = self.expr
        return self.pick(
            lambda: f"({e(d)}).{self.rnd.choice(KEYS)}", lambda: f"({e(d)})[{e(d, self.pick('int', 'str'))}]",
            lambda: f"({e(d)}) or ({e(d)})", lambda: f"({e(d)}) and ({e(d)})", lambda: self.name(),
            lambda: f"({e(d)} if {e(d, 'bool')} else {e(d)})",
            lambda: "loop." + self.pick("index0", "revindex", "revindex0", "last", "length", "previtem", "nextitem", "depth",
                                        "cycle('a', 'b')", "changed(i1)", "nosuch") if self.in_loop else self.leaf("any"),
        )()

    def macro_call(self, d):
        if not self.macros:
            return self.leaf("str")
        name, count = self.rnd.choice(self.macros)
        args = [self.expr(d, "str") for _ in range(self.rnd.randint(0, count + (self.chance(.1))))]
        if self.chance(.2):
            args.append(f"p0={self.expr(d, 'str')}")
        return f"{name}({', '.join(args)})"

    # -- statements -------------------------------------------------------------------------------------------------
    def tag(self, body):
        return "{%" + self.pick("", "", "-", "-", "+") + " " + body + " " + self.pick("", "", "-", "+") + "%}"

    def space(self):
        return self.pick("", "", "", " ", "\n", "\n  ", "  \n\n ", "\t", "\r\n")

    def text(self):
        return self.space() + self.pick("", "text", "a b", "}} ", "<|im_start|>", "é", "%}", "#", "'") + self.space()

    def output(self, d):
        return "{{" + self.pick("", "", "-") + " " + self.expr(d) + " " + self.pick("", "", "-") + "}}"

    def body(self, d):
        saved = list(self.names)
        out = "".join(self.statement(d) for _ in range(self.rnd.randint(1, 3)))
        self.names = saved
        return out

    def new_name(self):
        self.fresh += 1
        return self.pick("v", "w", "s1", "i1", f"n{self.fresh}")

    def statement(self, d):
        s = self.space
        if d <= 0:
            return self.text() + self.output(2) + s()
        choice = self.rnd.randrange(16)
        if choice < 3:
            return self.text() + self.output(self.rnd.randint(1, 3)) + s()
        if choice == 3:
            return "{#" + self.pick("", "-") + " c {{ x }} " + self.pick("", "-", "+") + "#}" + s()
        if choice == 4:
            return self.tag("raw").replace("+%", "%") + "{{ x }} {% y %}" + s() + self.tag("endraw") + s()
        if choice < 7:
            out = self.tag(f"if {self.expr(2, 'bool')}") + self.body(d - 1)
            if self.chance(.3):
                out += self.tag(f"elif {self.expr(1, 'bool')}") + self.body(d - 1)
            if self.chance(.4):
                out += self.tag("else") + self.body(d - 1)
            return out + self.tag("endif") + s()
        if choice < 10:
            return self.loop(d) + s()
        if choice < 12:
            name = self.new_name()
            value = self.expr(2)
            self.names.append(name)
            return self.tag(f"set {name} = {value}") + s()
        return self.rare(d) + s()

    def loop(self, d):
        name = self.new_name()
        where = f" if {self.expr(1, 'bool')}" if self.chance(.2) else ""
        if self.chance(.2):
            head = f"for k, {name} in ({self.expr(1, 'dict')}){self.pick('.items()', '|items', '|dictsort')}{where}"
        else:
            head = f"for {name} in {self.expr(2, 'list')}{where}"
        saved = list(self.names)
        self.names += [name, name]
        self.in_loop += 1
        out = self.tag(head) + self.body(d - 1)
        if self.chance(.25):
            out += self.tag(f"if {self.expr(1, 'bool')}") + self.tag(self.pick("break", "continue")) + self.tag("endif")
            out += self.text()
        self.in_loop -= 1
        self.names = saved
        if self.chance(.2):
            out += self.tag("else") + self.body(d - 1)
        return out + self.tag("endfor")

    def rare(self, d):
        kind = self.rnd.randrange(7)
        if kind == 0:
            name = self.new_name()
            pipe = self.pick("", "", " | upper", " | trim | replace('a', 'b')")
            out = self.tag(f"set {name}{pipe}") + self.body(d - 1) + self.tag("endset")
            self.names.append(name)
            return out
        if kind == 1:
            out = self.tag(f"set ns = namespace(a={self.expr(1)}, n=0)")
            out += self.tag(f"for q in {self.leaf('list')}") + self.tag(f"set ns.n = ns.n + {self.leaf('int')}")
            out += self.tag(f"set ns.a = {self.expr(1)}") + self.tag("endfor")
            return out + "{{ ns.n }}{{ ns.a }}{{ ns.zz }}"
        if kind == 2:
            name, count = f"m{self.fresh}", self.rnd.randint(0, 2)
            self.fresh += 1
            params = [f"p{i}" for i in range(count)]
            head = ", ".join(p + (f"={self.leaf('str')}" if i == count - 1 and self.chance(.5) else "")
                             for i, p in enumerate(params))
            saved, loops, self.in_loop = list(self.names), self.in_loop, 0
            self.names += params * 2
            body = self.body(d - 1) + self.pick("", "", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}")
            self.names, self.in_loop = saved, loops
            self.macros.append((name, count))
            return self.tag(f"macro {name}({head})") + body + self.tag("endmacro")
        if kind == 3 and self.macros:
            return self.tag(f"call {self.rnd.choice(self.macros)[0]}()") + self.body(d - 1) + self.tag("endcall")
        if kind == 4:
            return self.tag("filter " + self.pick("upper", "trim", "indent(2)", "replace('a', 'o')|title")) + \
                self.body(d - 1) + self.tag("endfilter")
        if kind == 5:
            return self.tag(f"with v = {self.expr(1)}, w = {self.expr(1)}") + self.body(d - 1) + self.tag("endwith")
        if kind == 6:
            return self.tag("generation") + self.output(2) + self.tag("endgeneration")
        return self.tag(f"set v, w = {self.expr(1)}, {self.expr(1)}") + "{{ v }}{{ w }}"

    def variables(self):
        r = self.rnd
        value = lambda: self.pick(r.choice(STRINGS), r.randint(-9, 99), round(r.uniform(-5, 5), 2), None, True, [1, "x"],
                                  {"k": "v"})
        message = lambda: {"role": self.pick("user", "assistant", "system", "tool"), "content": r.choice(STRINGS),
                           **({"tool_calls": [{"a": value()}]} if self.chance(.3) else {}),
                           **({"x": {"y": value()}} if self.chance(.2) else {})}
        return {"s1": r.choice(STRINGS), "s2": r.choice(STRINGS), "i1": r.randint(-3, 9), "i2": r.randint(0, 99),
                "f1": self.pick(0.5, -2.25, 1e16, 123456.789, 0.1, 3.0, 1e-5), "b1": self.chance(.5), "none1": None,
                "list1": [value() for _ in range(r.randint(0, 4))],
                "list2": [r.randint(-2, 9) for _ in range(r.randint(0, 5))],
                "dict1": {r.choice(KEYS): value() for _ in range(r.randint(0, 4))},
                "messages": [message() for _ in range(r.randint(0, 4))]}


def make_case(seed):
    maker = Maker(random.Random(seed))
    variables = maker.variables()
    template = "".join(maker.statement(3) for _ in range(maker.rnd.randint(1, 4)))
    return {"template": template, "variables": variables}
