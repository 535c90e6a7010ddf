"""Options of the command line, read from the Python function that a command calls; Ctrl-C."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from orchestrator.signals import interruptible
from orchestrator.terminal import say_to_stderr

_ROOT = Path(__file__).resolve().parents[2]
# Types of options, by the annotation of the parameter; typer takes no other union than with None.
_TYPES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, Path)},
    **dict.fromkeys(("str | Path", "str | Path | Rows"), Path),
    **dict.fromkeys(("Engine", "Metric"), str),
    "Backend": Literal["loky", "dask", "ray"],
    "PopulationSize": Any,
}
_SIZE = {"metavar": "K|auto", "parser": lambda text: text if text == "auto" else int(text)}
_PARAMETER = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_Verb = TypeVar("_Verb", bound=Callable[..., None])

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/quickstart.")
]
StudyPath = Annotated[
    Path, typer.Argument(metavar="STUDY.py", help="A Python file with study = Study(...).")
]
StudyName = Annotated[
    str, typer.Option("--study", help="Variable that holds the study, or its name.")
]
StudyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="STUDY.py",
        help="The file that the run was launched from; by default the one in launch.json.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object only.")]


@contextmanager
def interrupted(remark: str) -> Iterator[None]:
    """End a command cleanly at Ctrl-C and SIGTERM."""
    try:
        with interruptible(remark):
            yield
    except KeyboardInterrupt:
        say_to_stderr(f"interrupted; {remark}")
        raise typer.Exit(130) from None


def flag(parameter: str) -> str:
    """Spell a parameter of a Python call as the command line has it."""
    return f"--{parameter.replace('_', '-')}"


def takes(source: str, *without: str) -> Callable[[_Verb], _Verb]:
    """Give a verb the options of a Python function, named "module:function", for its `**options`.
    Its own positional parameters come first and replace those of the function; parameters
    `without`, and those whose type is not in `_TYPES` (a study), are no options."""

    def with_options(verb: _Verb) -> _Verb:
        signature = inspect.signature(verb)
        parameters = {
            name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        }
        for option in _options(source):
            if option.name not in (*parameters, *without):
                parameters[option.name] = option
        signature = signature.replace(parameters=list(parameters.values()))
        verb.__signature__ = signature  # type: ignore[attr-defined]
        return verb

    return with_options


def _options(source: str) -> Iterator[inspect.Parameter]:
    function = _declaration(*source.split(":"))
    texts = dict(_PARAMETER.findall(ast.get_docstring(function) or ""))
    taken = [*function.args.args, *function.args.kwonlyargs]
    defaults = [None] * (len(function.args.args) - len(function.args.defaults))
    for argument, default in zip(
        taken, [*defaults, *function.args.defaults, *function.args.kw_defaults], strict=True
    ):
        annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
        if annotation.removesuffix(" | None") not in _TYPES:
            continue
        kind = _TYPES[annotation.removesuffix(" | None")]
        settings: dict[str, Any] = _SIZE if kind is Any else {}
        if annotation.endswith("None") and kind is not Any:
            kind = kind | None
        line = " ".join(texts[argument.arg].split())
        text = _CODE.sub(lambda code: flag(code[1]) if code[1] in texts else code[1], line)
        # The name keeps typer from adding --no-... to a bool.
        option = typer.Option(flag(argument.arg), help=f"{text[:1].upper()}{text[1:]}", **settings)
        yield inspect.Parameter(
            argument.arg,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is None else ast.literal_eval(default),
            annotation=Annotated[kind, option],
        )


def _declaration(module: str, name: str) -> ast.FunctionDef:
    """Find a function, or a method "Class.name", in the source of its module, which is not
    imported: help must not wait for torch."""
    node: Any = _module(_ROOT.joinpath(*module.split(".")).with_suffix(".py"))
    for part in name.split("."):
        node = next(inner for inner in node.body if getattr(inner, "name", None) == part)
    assert isinstance(node, ast.FunctionDef)
    return node


@cache
def _module(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
