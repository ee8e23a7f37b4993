"""What is raised for a user's mistake."""


class InputError(ValueError):
    """Something handed to Surefoot cannot be used; the message says what, got and allowed.

    The command line prints it as one sentence and exits with 2.
    """
