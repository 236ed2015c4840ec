"""The one error this package raises for a request it can't meet."""


class RequestError(Exception):
    """The request is wrong: one line that says what, where, and the nearest right thing.

    Commands turn it into that line and exit status 2; nothing else in `corpora` may
    derive from it, so that a failure while running is never mistaken for bad input.
    """
