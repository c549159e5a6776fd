"""What can go wrong, and the exit code each kind ends the command with."""

__all__ = ["CheckpointError", "ConfigError", "DataError", "DivergedError", "Interrupted", "RewardError", "TrainError"]


class TrainError(Exception):
    """Base of the errors that end a command with one line instead of a traceback."""

    exit_code = 1


class ConfigError(TrainError):
    """The configuration cannot be run; found before any work is done."""

    exit_code = 2


class DataError(TrainError):
    """A data file or row cannot be used; found before any work is done."""

    exit_code = 2


class RewardError(TrainError):
    """A reward function failed or gave what is no score; the last checkpoint is kept."""


class DivergedError(TrainError):
    """Training stopped itself: the loss or the gradients stayed non-finite."""

    exit_code = 5


class CheckpointError(TrainError):
    """A checkpoint could not be written or read."""

    exit_code = 6


class Interrupted(TrainError):
    """The user or the system asked the run to stop; its state was saved first."""

    exit_code = 130
