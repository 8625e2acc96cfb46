"""What a recorded figure is a figure of: digests of launch rule, source and machine code, comments apart."""

import ast
import functools
import hashlib
import inspect
import re
from typing import Any, NamedTuple

from rooflab.errors import UsageError

# Tokens of CUDA C++ as far as whitespace and comments need them. Operators of several characters are one
# token, so that "a++b" and "a+ +b" stay different; a number takes its digit separators, so that 1'000 opens
# no character literal.
_TOKEN = re.compile(
    r"""
    (?: //(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z) )
  | (?P<newline>  \n )
  | (?:[^\S\n]|\\\r?\n)+
  | (?P<token>    (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
                | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
                | (?:u8|[uUL])?'(?:\\.|[^'\\\n])+'
                | \.?[0-9](?:'[0-9A-Za-z_]|[eEpP][+-]|[0-9A-Za-z_.])*
                | [^\W\d]\w*
                | <<<|>>>|<=>|<<=|>>=|->\*|\.\.\.|::|\.\*|\#\#|->|\+\+|--
                | <<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=
                | . )
    """,
    re.VERBOSE | re.DOTALL,
)
SKIPPED = "skipped: "  # with a reason after it: the identity of a case that could not be measured there
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OF_CODE = re.compile(r"([0-9a-f]{10})\.([0-9a-f]{10})\.([0-9a-f]{10}|-)")


def strip_comments(cuda_source: str) -> str:
    """CUDA C++ reduced to its tokens: without comments, one space between tokens, a preprocessor directive a
    line of its own. String, character and raw literals are kept to the letter. Two sources with the same
    result compile to the same code (unless they read __LINE__); feeding the result back changes nothing."""
    *before, last = cuda_source.split("\n}\n")
    parts = [_reduced(f"{part}\n}}") for part in before]
    if not all(part.closed for part in parts):
        return "\n".join(_reduced(cuda_source).lines)
    lines: list[str] = []
    for part in [*parts, _reduced(last)]:
        first, *rest = part.lines or ("",)
        if lines and first and "#" not in (lines[-1][0], first[0]):  # code goes on, a directive does not
            first = f"{lines.pop()} {first}"
        lines += [first, *rest] if first else []
    return "\n".join(lines)


class _Reduced(NamedTuple):
    """A source's tokens: a line a directive, and one for all code between two of them; and whether it ends
    as it would in front of another line, not within a comment or a literal."""

    lines: tuple[str, ...]
    closed: bool


# A comment or a literal that may have no end, or a line that goes on.
_OPEN = re.compile(r'R"|/\*(?!.*?\*/)|[\\\r]\Z', re.DOTALL)


@functools.lru_cache(maxsize=8192)  # rungs have headers in common, and a recording asks for every case
def _reduced(cuda_source: str) -> _Reduced:
    lines: list[str] = []
    line, directive, gap, fresh_line = "", False, False, True
    for newline, token, _ in _TOKEN.findall(cuda_source):
        if newline:
            if directive:
                lines.append(line)
                line, directive = "", False
            fresh_line = gap = True
        elif not token:  # space or a comment
            gap = True
        else:
            if fresh_line and token == "#":
                lines.append(line)
                line, directive = "", True
            # In a directive a space can matter: "#define F (x)" is not "#define F(x)".
            separated = line and (gap or not directive)
            line += f" {token}" if separated else token
            fresh_line = gap = False
    return _Reduced(tuple(text for text in [*lines, line] if text), not _OPEN.search(cuda_source))


@functools.lru_cache(maxsize=1024)
def source_of_callable(*functions: Any) -> str:
    """The code of functions or classes (a launch rule with its helpers, repack code) as a text in which
    comments, docstrings and formatting don't show, the same under every Python version. Only the text of the
    functions given counts, not what they call. UsageError for a lambda or for code without a source file."""
    texts = []
    for function in functions:
        try:
            lines = inspect.getsource(inspect.unwrap(function))
            # An indented definition (a method, a function in a function) is parsed as the body of an `if`.
            tree = ast.parse(f"if 1:\n{lines}" if lines[0].isspace() else lines)
            definition = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
        except (OSError, TypeError, SyntaxError):
            definition = None
        if not isinstance(definition, _DEFINITION):
            raise UsageError(
                f"{function!r} has no definition to read; a launch rule is a function made with def."
            )
        texts.append(_canonical(definition))
    return "\n".join(texts)


def _canonical(node: object) -> str:
    # Not ast.dump or ast.unparse: their text differs between Python versions.
    if isinstance(node, list):
        return f"[{' '.join(map(_canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    documented = isinstance(node, _DEFINITION) and ast.get_docstring(node, clean=False) is not None
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and documented:
            value = value[1:]
        if name == "decorator_list":
            value = [decorator for decorator in value if not _is_door(decorator)]
        if value is not None and value != [] and name not in ("kind", "type_comment"):
            parts.append(f"{name}={_canonical(value)}")
    return f"{type(node).__name__}({' '.join(parts)})"


def _is_door(decorator: ast.AST) -> bool:
    """Whether it is ops.with_target, which chooses the machine, or ops.remembered, which spares the host
    checks made before: what runs on the GPU is the same.
    """
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(call, ast.Name) and call.id in ("with_target", "remembered")


def identity(launch: bytes | str, source: str, machine: bytes | None, *, stripped: bool = False) -> str:
    """The identity "<launch>.<source>.<machine>" of a kernel's figures: ten hex digits each of the launch
    rule with repack code and compile options, of the source with its headers (comments stripped here unless
    they are), and of the machine code with the compiler's version ("-" where None: unknown)."""
    source = source if stripped else strip_comments(source)
    return ".".join([_digest(launch), _digest(source), "-" if machine is None else _digest(machine)])


def _digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:10]


def fresh(recorded: str, current: str) -> bool:
    """Whether figures recorded under one identity stand for the other: the same words (a peer's
    "torch-2.11.0"), or kernels of the same launch part whose source or whose known machine code is the same.
    A blank is never fresh."""
    ours, theirs = _OF_CODE.fullmatch(recorded), _OF_CODE.fullmatch(current)
    if not (ours and theirs):
        return recorded == current != ""
    same_machine = ours[3] == theirs[3] != "-"
    return ours[1] == theirs[1] and (ours[2] == theirs[2] or same_machine)
