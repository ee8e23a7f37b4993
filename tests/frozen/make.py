"""`python -m tests.frozen.make [CASE ...]`: write the golden files anew. See with git what has changed."""

import sys
import tempfile
from pathlib import Path

from tests.frozen.cases import CASES
from tests.frozen.files import save
from tests.frozen.inputs import write_inputs


def main():
    wanted = sys.argv[1:] or [case.__name__ for case in CASES]
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        for case in CASES:
            if case.__name__ in wanted:
                out = Path(folder) / case.__name__
                out.mkdir()
                save(case, case(inputs, out))


if __name__ == "__main__":
    main()
