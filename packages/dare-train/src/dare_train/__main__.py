"""`python -m dare_train` is `dare-train`."""

from .cli import app

app()
