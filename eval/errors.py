"""The two errors of this package: the request is wrong, or the work was cut short."""


class RequestError(Exception):
    """The request is wrong: one line that says what, where, and the nearest right thing.

    Commands turn it into that line and exit status 2; nothing else in `eval` may
    derive from it, so that a failure while running is never mistaken for bad input.
    """


class Stopped(Exception):  # noqa: N818  what it says is no mistake of the user's
    """The work was cut short: one line that says why, what is saved, and what goes on from there.

    Commands turn it into that line and exit status 1; the same command, given again, goes on.
    """
