"""HTML reports: one self-contained page from the JSON of ``sparsesync profile``, ``compare``, ``plan``, ``calibrate`` and ``simulate``."""
