"""Shared by the tests in this folder: the project's tree, and generated trees."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("SPARSESYNC_SOURCE_DIR", Path(__file__).parents[2]))


def tree(root, files):
    """Writes these files below `root`: {name: text}. Returns `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
