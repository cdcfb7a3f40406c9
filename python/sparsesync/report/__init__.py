"""One self-contained HTML page from the JSON of `sparsesync profile`, `compare`, `plan` and `calibrate`."""
