"""The exceptions that the command line turns into one line and an exit code."""


class UserError(ValueError):
    """A user's mistake: bad file, value or key.

    The message is one line that names the file, value or key and the mend. The command line prints it alone, without a
    traceback, and leaves with exit code 2; a library caller may catch it as a ``ValueError``.
    """


class DivergedError(ArithmeticError):
    """Training produced a loss that is not finite. The command line prints the one line and leaves with exit code 3."""
