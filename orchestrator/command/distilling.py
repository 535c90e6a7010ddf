"""`distil`: from a pretrained model and raw text to a smaller one, for studies as a student."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.progress import Progress

from objectives.cache import content_key
from objectives.device import choose_device, quiet_libraries
from objectives.errors import UserError, spelled
from objectives.progress import SilentProgress
from objectives.search_method import not_finite
from objectives.students.bert import pretrained
from objectives.students.bert.adapters import AdaptedBert
from objectives.students.bert.exporting import save_model, save_tokenizer
from objectives.students.bert.student import check_layers, keep_layers
from objectives.text.task import Examples, tokenise
from objectives.text.text_files import TextFile
from objectives.training.fitting import Text, distil_states
from objectives.workbench.teacher import load_frozen
from orchestrator.errors import RunError
from orchestrator.terminal import say
from reports.exporting.export import check_free, new_folder

_LONGEST = 128  # tokens of a text


@spelled
def distil(
    teacher: str | Path,
    text: str | Path,
    out: str | Path,
    *,
    student_layers: Sequence[int],
    delimiter: str | None = None,
    encoding: str = "utf-8",
    quotechar: str | None = None,
    epochs: float = 3,
    learning_rate: float = 1e-4,
    batch_size: int = 32,
    device: str = "auto",
    console: Console | None = None,
) -> Path:
    """Let layers of a pretrained model learn its hidden states on raw text: TinyBERT's first phase.

    Studies whose teacher was fine-tuned from the same model name the folder as `Study.student`. The
    same call goes on where one was cut off.

    Args:
        teacher: a pretrained BERT, folder or name on the hub; a classifier in it has no part.
        text: a file with a text a line (.txt), or a table with a column "text". Equal ones count
            once, and of each 128 tokens at most.
        out: the folder to make; it must not hold anything yet.
        student_layers: layers of the teacher that the student starts with, such as (0, 2, 4).
        delimiter: what separates the columns of a CSV.
        encoding: how the file's characters are written.
        quotechar: what encloses fields of a CSV, "" for nothing; see `Task.from_files`.
        epochs: passes over the texts. > 0.
        learning_rate: peak of AdamW's rate. > 0.
        batch_size: texts of a step. >= 1.
        device: "auto", "cpu", "cuda" or "cuda:N".
        console: what shows progress and notes; the terminal by default.

    Returns:
        The folder: a BERT without a classifier, and its tokenizer.

    Raises:
        RunError: if the folder is taken, or a number is out of its range.
        UserError: for a model or a file that cannot be read, and for a loss that is not finite.
    """
    quiet_libraries()
    out, teacher, console = Path(out).absolute(), str(teacher), console or Console()
    check_free(out)
    numbers = epochs, learning_rate, batch_size
    if not all(0 < number < math.inf for number in numbers) or batch_size % 1:
        raise RunError(
            "distil: epochs, learning_rate and batch_size must be finite numbers above 0, the last "
            "one whole"
        )
    pretrained.Checkpoint(teacher).bert_config()  # refuses what computes something else
    large = load_frozen(teacher, choose_device(device))
    if isinstance(large, AdaptedBert):
        raise UserError(f"model '{teacher}': general distillation takes and makes BERTs alone")
    check_layers(student_layers, large.config.num_hidden_layers)
    with TemporaryDirectory() as cache:
        read = TextFile.named(text, delimiter, encoding, quotechar).read(["text"], cache)
        lines = (str(line) for line in read["text"] if line is not None)
        texts = [(line,) for line in dict.fromkeys(lines) if line.strip()]
    if not texts:
        raise UserError(f"file '{text}' holds no text")
    checkpoint, small = pretrained.Checkpoint(teacher), keep_layers(large, student_layers)
    tokenizer = checkpoint.tokenizer
    longest, labels = min(_LONGEST, large.config.max_position_embeddings), np.zeros(len(texts), int)
    rows = tokenise(Examples(texts, labels), "train", tokenizer, longest)
    training = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
    made_of = {"teacher": checkpoint.fingerprint, "layers": list(student_layers)}
    key = content_key({**training, **made_of, "text": rows.fingerprint})
    begun = out.with_name(f".{out.name}.begun-{key}")
    with Progress(console=console) as bars:
        settings = {**training, "progress": _Bar(bars), "checkpoint": begun}
        curve = distil_states(small, large, Text(rows, str(large.device)), **settings)
    if failure := not_finite(0, curve):
        raise UserError(f"distil: {failure.reason}; lower learning_rate, now {learning_rate:g}")
    with new_folder(out) as unfinished:
        save_model(small.bert, unfinished)
        save_tokenizer(tokenizer, unfinished)
    begun.unlink(missing_ok=True)
    first, last = (point["loss"] for point in (curve[0], curve[-1]))
    say(console, f"{out}: {len(texts):,} texts; loss {first:.4g} to {last:.4g}")
    return out


@dataclass
class _Bar(SilentProgress):
    """A bar for each stage, and notes above it."""

    bars: Progress

    def note(self, line: str) -> None:
        say(self.bars.console, line)

    def begin(self, stage: str, steps: int, done: int = 0) -> None:
        self.bars.add_task(stage, total=steps, completed=done)

    def advance(self) -> None:
        self.bars.advance(self.bars.task_ids[-1])
