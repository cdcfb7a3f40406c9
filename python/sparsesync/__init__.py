"""sparsesync in Python: reports of what the program measures (sparsesync.report)."""
