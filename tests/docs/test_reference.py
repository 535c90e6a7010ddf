"""The reference says of every public name what it takes and gives, in the docstrings' own words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import griffe
import pytest
from optuna.samplers import BaseSampler

import maskfront
from tests.docs.blocks import ROOT

GIVES = {griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields}


@pytest.fixture(scope="module")
def sources() -> griffe.GriffeLoader:
    """maskfront and the packages behind it as mkdocstrings reads them: text, nothing imported."""
    loader = griffe.GriffeLoader(
        search_paths=[str(ROOT)], docstring_parser=griffe.Parser.google, allow_inspection=False
    )
    for name in ("maskfront", "objectives", "orchestrator", "reports"):
        loader.load(name)
    loader.resolve_aliases()
    return loader


def documented_by_a_base(owner: griffe.Class, name: str) -> bool:
    """Whether a base, ours or Optuna's, says what this member is; what overrides it need not."""
    bases = [base for base in owner.mro() if name in base.members]
    of_optuna = "BaseSampler" in map(str, owner.bases) and hasattr(BaseSampler, name)
    return of_optuna or any(base.members[name].docstring is not None for base in bases)


def missing_in(function: griffe.Function) -> Iterator[str]:
    """Arguments that its docstring leaves out, and "Returns" if what it gives is."""
    sections = function.docstring.parsed if function.docstring else []
    told = {
        argument.name.lstrip("*")
        for section in sections
        if section.kind is griffe.DocstringSectionKind.parameters
        for argument in section.value
    }
    taken = [parameter.name.lstrip("*") for parameter in function.parameters]
    yield from (name for name in taken if name not in told | {"self", "cls"})
    gives = str(function.returns or "None") != "None"
    if gives and not GIVES & {section.kind for section in sections}:
        yield "Returns"


def filters_of(name: str) -> list[str]:
    """What the entry of a public name leaves out, as regular expressions."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    entry = re.search(rf"^::: maskfront\.{name}$(\n[ ]+.*)*", pages, re.M)
    filters = re.search(r"filters: (\[.*\])", entry[0] if entry else "")
    return [text.removeprefix("!") for text in json.loads(filters[1] if filters else '["!^_"]')]


def gaps(thing: griffe.Object, filters: list[str]) -> Iterator[str]:
    """Places of a public name that its docstrings do not cover; what its entry leaves out is for
    the packages alone."""
    if isinstance(thing, griffe.Function):
        yield from missing_in(thing)
        return
    if thing.docstring is None:
        yield "docstring"
    owners = (thing, *thing.mro()) if isinstance(thing, griffe.Class) else ()
    members = [(owner, name) for owner in owners for name in owner.members]
    for base, name in members:
        member = base.members[name]
        if name.startswith("_") or documented_by_a_base(base, name):
            continue
        shown = not any(re.search(left_out, name) for left_out in filters)
        if isinstance(member, griffe.Function) and shown:
            yield from (f"{name}: {gap}" for gap in missing_in(member))
        elif isinstance(member, griffe.Function | griffe.Attribute) and member.docstring is None:
            yield name


@pytest.mark.parametrize("name", maskfront.__all__)
def test_docstrings_say_what_it_takes_and_gives(sources: griffe.GriffeLoader, name: str) -> None:
    thing = sources.modules_collection["maskfront"][name]
    found = gaps(thing.final_target if thing.is_alias else thing, filters_of(name))
    assert list(found) == []


MEANINGS = {
    "flops_weight": "lambda: weight of the FLOPs loss ",
    "grad_rescale": "kappa: (factor on the gradient that reaches alpha|step size of )",
    "target_ratio": "R: (the )?share of ",
    "tolerance": r"t: (the cut model lies in|inside) \[\(1 - t\) R, \(1 \+ t\) R\]",
}
"""lambda, kappa, R and t of the search loop: how the docstring of each must begin."""


@pytest.mark.parametrize("field", MEANINGS)
def test_lambda_kappa_r_and_t_mean_one_thing_in_every_method(
    sources: griffe.GriffeLoader, field: str
) -> None:
    """What ranks by score per cost, or is a share of scores, has another name."""
    declared = []
    for module in (sources.modules_collection["objectives"], *_modules(sources, "objectives")):
        for owner in module.classes.values():
            attribute = owner.members.get(field)
            if isinstance(attribute, griffe.Attribute) and attribute.docstring is not None:
                declared.append(f"{owner.name}: {' '.join(attribute.docstring.value.split())}")
    assert len(declared) > 2
    assert [text for text in declared if not re.match(rf"\w+: {MEANINGS[field]}", text)] == []


def _modules(sources: griffe.GriffeLoader, name: str) -> Iterator[griffe.Module]:
    for module in sources.modules_collection[name].modules.values():
        if not module.is_alias:
            yield module
            yield from _modules(sources, module.path)


def test_every_public_name_has_an_entry() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    entries = [
        name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    ]
    assert sorted(entries) == [f"maskfront.{name}" for name in maskfront.__all__]
