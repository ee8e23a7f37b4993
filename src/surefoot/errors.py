"""The one error that is the caller's to mend."""


class InputError(ValueError):
    """Something handed to Surefoot cannot be used; the message says what, got and allowed.

    The command line prints it as one sentence and exits with 2.
    """
