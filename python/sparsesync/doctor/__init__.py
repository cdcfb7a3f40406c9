"""Check of an installation: ``python -m sparsesync doctor`` prints what is installed, usable and missing."""
