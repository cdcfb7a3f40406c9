"""What the tests of our own scripts share: our tree, trees that are made up, and a check that is run on either."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))


def check(script, root):
    """(exit status, output) of scripts/SCRIPT on the tree below `root`."""
    program = [sys.executable, str(ROOT / "scripts" / script), str(root)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def tree(root, files):
    """`root`, with these files below it: {name: text}."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def expect_good(script, root):
    """The check finds nothing wrong; its output."""
    status, output = check(script, root)
    assert status == 0, output
    return output
