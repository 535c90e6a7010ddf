"""Weights of a checkpoint: find their files, and load a model that has all of them."""

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar
from zipfile import is_zipfile

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import str_to_torch_dtype
from transformers.utils import cached_file

from objectives.errors import UserError, first_line

_Model = TypeVar("_Model", bound=PreTrainedModel)
PICKLED = "pytorch_model.bin"
_FILES = ("model.safetensors", PICKLED)
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_WRAPPERS = ("_orig_mod.", "module.", "model.", "_fsdp_wrapped_module.")
_BUFFER = re.compile(r"\.(masked_bias|inv_freq|position_ids|attn\.(attention\.)?bias)$")
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def find(checkpoint: str, name: str) -> Path | None:
    """Find a file of a checkpoint, a folder or a name on the hub; None if it is missing."""
    try:
        path = cached_file(checkpoint, name)
    except (OSError, ValueError):
        return None
    return None if path is None else Path(path)


def weight_files(checkpoint: str) -> list[Path]:
    """Files of the weights, safetensors before pickled. Raises UserError if one is missing."""
    for name in _FILES:
        if file := find(checkpoint, name):
            return [file]
        if index := find(checkpoint, f"{name}.index.json"):
            try:
                names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
                shards = {shard: find(checkpoint, shard) for shard in names}
            except Exception as error:  # whatever JSON holds instead of names
                raise UserError(
                    f"model '{checkpoint}': {index.name} cannot be read ({first_line(error)}); "
                    "save the model again (save_pretrained of transformers)"
                ) from error
            if missing := [shard for shard, path in shards.items() if path is None]:
                raise UserError(
                    f"model '{checkpoint}': {index.name} names {missing[0]}, which is not there; "
                    "copy all files of the model"
                )
            return [path for path in shards.values() if path is not None]
    raise UserError(
        f"model '{checkpoint}': it has neither {' nor '.join(_FILES)}, whole or in shards with an "
        "index; save_pretrained of transformers writes the first"
    )


def is_pickled(checkpoint: str) -> bool:
    """Whether its weights are pickled, so that they could hide code."""
    return weight_files(checkpoint)[0].suffix != ".safetensors"


def refuse_adapter(checkpoint: str) -> None:
    """Raise UserError for adapter weights (peft), alone or beside a model's."""
    for name in _ADAPTERS:
        if find(checkpoint, name):
            raise UserError(
                f"model '{checkpoint}': it has an adapter of peft ({name}), which nothing would "
                "apply; save it merged: AutoPeftModelForSequenceClassification.from_pretrained("
                f"'{checkpoint}', num_labels=N).merge_and_unload().save_pretrained(FOLDER), and "
                "its tokenizer there too; or remove the adapter's files, if the model has it merged"
            )


def fingerprint_of_weights(checkpoint: str) -> str:
    """SHA-256 of the files of the weights, hexadecimal, shortened to 16 digits."""
    digest = hashlib.sha256()
    for file in weight_files(checkpoint):
        with file.open("rb") as weights:
            hashlib.file_digest(weights, lambda: digest)
    return digest.hexdigest()[:16]


def stored(checkpoint: str) -> dict[str, Tensor]:
    """Weights by name; of safetensors only sizes and types, as zeros without memory."""
    weights: dict[str, Tensor] = {}
    for file in weight_files(checkpoint):
        try:
            weights |= _sizes(file) if file.suffix == ".safetensors" else _unpickled(file)
        except Exception as error:  # damaged files raise almost anything
            # torch says how to run the code of a file, before it says why it did not.
            refused = re.search(r"[Uu]nsupported .+?(?=\. |\.?\n|$)", str(error))
            raise UserError(
                f"model '{checkpoint}': {file.name} cannot be read "
                f"({refused.group() if refused else first_line(error)}); copy it again, or save "
                "the model again (save_pretrained of transformers)"
            ) from error
    return weights


def _sizes(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as weights:
        slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118 (no dict)
        return {
            name: torch.zeros((), dtype=str_to_torch_dtype[w.get_dtype()]).expand(w.get_shape())
            for name, w in slices.items()
        }


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Load weights of torch.save with the loader that runs no code."""
    with warnings.catch_warnings(action="ignore"):  # of protocols of pickle
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    if not isinstance(state, Mapping) or not all(map(torch.is_tensor, state.values())):
        raise ValueError("it holds more than weights by their names")
    return dict(state)


def load(
    kind: type[_Model],
    checkpoint: str,
    config: PreTrainedConfig,
    *,
    new_head: bool = False,
    other_heads: bool = False,
    only_check: bool = False,
) -> _Model:
    """Load every weight, float32 on the CPU. Raises UserError unless files and config agree."""
    # A `new_head` is drawn from torch's random numbers. It, and a model that says so, may leave
    # `other_heads` of the files out. To `only_check` reads no weights of safetensors.
    refuse_adapter(checkpoint)
    state, by_state = stored(checkpoint), only_check or is_pickled(checkpoint)
    try:
        loaded: Any = kind.from_pretrained(
            None if by_state else checkpoint,
            config=config,
            state_dict=state if by_state else None,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
        )
    except Exception as error:  # a config.json makes transformers raise almost anything
        raise UserError(
            f"model '{checkpoint}': it cannot be loaded ({first_line(error).rstrip(':')}); mend "
            "its config.json, or save it again"
        ) from error
    model: _Model = loaded[0]
    if problem := _problem(model, loaded[1], state, new_head, new_head or other_heads):
        raise UserError(f"model '{checkpoint}': {problem}")
    return model


def _problem(
    model: PreTrainedModel,
    report: Mapping[str, set[Any]],
    state: Mapping[str, Tensor],
    new_head: bool,
    other_heads: bool,
) -> str | None:
    """Describe how the files disagree with config.json, and the remedy; None if they agree."""
    prefix = f"{model.base_model_prefix}."
    parts = {name.split(".")[0] for name in model.base_model.state_dict()} - {"pooler"}

    def in_body(name: str) -> bool:
        return name.removeprefix(prefix).split(".")[0] in parts

    missing, unexpected = report["missing_keys"], report["unexpected_keys"]
    lacking = sorted(name for name in missing if in_body(name) or not new_head)
    for name in sorted(unexpected):
        wrapper = _wrapper(name, lacking or missing, prefix)
        if wrapper and (lacking or wrapper in _WRAPPERS):  # ALBERT has sop_classifier.classifier
            return (
                f"{len(missing)} of its {len(model.state_dict())} weights are not in its files, "
                f"which have other names, such as '{name}'; save the model without '{wrapper}', "
                "which something put around it (torch.compile, a parallel wrapper)"
            )
    if sizes := sorted(report["mismatched_keys"]):
        name, stored_size, size = sizes[0]
        return (
            f"its weight '{name}'{_more(sizes)} is of size {tuple(stored_size)} in its files and "
            f"{tuple(size)} by its config.json; mend config.json, or save both again"
        )
    if lacking:
        return (
            f"its files lack the weight '{lacking[0]}'{_more(lacking)}, which its config.json asks "
            "for; save the whole model again, or mend config.json"
        )
    spare = (n for n in unexpected if "pooler" not in n.split(".") and not _BUFFER.search(n))
    if added := sorted(name for name in spare if in_body(name) or not other_heads):
        return (
            f"its config.json has no place for the weight '{added[0]}'{_more(added)}; mend it (a "
            "number of layers?), or, if the model answers as it should without them, load it "
            "with transformers and save it again"
        )
    floats = (name for name, weight in model.named_parameters() if weight.is_floating_point())
    integers = (name for name in floats if name in state and state[name].dtype not in _FLOATS)
    if rounded := sorted(integers):
        return (
            f"its weight '{rounded[0]}'{_more(rounded)} is of {state[rounded[0]].dtype}, which "
            "means nothing without its scale; save the model in float32"
        )
    return None


def _wrapper(name: str, missing: Collection[str], prefix: str) -> str | None:
    """Part of a name without which it is one of those that are missing."""
    pieces = name.split(".")
    for start, end in combinations(range(len(pieces)), 2):
        rest = ".".join(pieces[:start] + pieces[end:])
        if rest in missing or prefix + rest in missing:
            return ".".join(pieces[start:end]) + "."
    return None


def _more(names: Sequence[object]) -> str:
    return f" and {len(names) - 1:,} more" if len(names) > 1 else ""
