"""Shared by the tests beside it: our tree, and trees that are made up."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))


def tree(root, files):
    """`root`, with these files below it: {name: text}."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
