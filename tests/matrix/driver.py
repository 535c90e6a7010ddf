"""Combinations of the matrix on a GPU, or on the stand-in for one.

    LD_PRELOAD=stand_in.so python -m tests.matrix.driver PRETRAINED CLASSIFIER FOLDER NAME...

Writes FOLDER/found.json: of each combination that is named "" or what went wrong. See
tests/gpu/driver.py.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from objectives.device import quiet_libraries
from tests.gpu.driver import make_gpu
from tests.matrix.combinations import Models, combinations, run_whole


def main() -> None:
    """Run the combinations one after another."""
    quiet_libraries()
    pretrained, classifier, out, *names = sys.argv[1:]
    by_name = {one.name: one for one in combinations()}
    found = {}
    with make_gpu(bfloat16=False).plugged_in():
        for name in names:
            try:
                run_whole(by_name[name], Models(pretrained, classifier), Path(out))
                found[name] = ""
            except Exception:
                found[name] = traceback.format_exc()
    (Path(out) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
