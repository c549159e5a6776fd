"""Usage: prove_alone.py OWN OTHER…: OWN is imported from this environment, and no OTHER is in it."""

import importlib
import sys

own, *others = (name.replace("-", "_") for name in sys.argv[1:])
where = importlib.import_module(own).__file__ or ""
if not where.startswith(sys.prefix):
    sys.exit(f"{own} comes from {where}, not from its wheel in {sys.prefix}")
for other in others:
    try:
        importlib.import_module(other)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{own} does not declare {other}, yet it is installed beside it")
print(f"{own} from its wheel; absent: {', '.join(others)}")
