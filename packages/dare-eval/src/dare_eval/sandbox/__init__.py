"""Running code that nobody trusts, and judging it from outside.

A job is judged by a process of its own, the supervisor, which runs the tests and keeps the program in a jail: another
user, limits, and where the system allows it namespaces (no network, no foreign files or processes) and a filter for
system calls. The two exchange plain data only. Needs Linux.
"""

from dare_eval.sandbox.box import Judgement as Judgement
from dare_eval.sandbox.box import Limits as Limits
from dare_eval.sandbox.box import Sandbox as Sandbox
from dare_eval.sandbox.box import SandboxError as SandboxError
from dare_eval.sandbox.box import reached_level as reached_level

__all__ = ["Judgement", "Limits", "Sandbox", "SandboxError", "reached_level"]
