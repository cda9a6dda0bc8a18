"""The exit codes of every command; docs/cli.md tells them to users."""

OK = 0
NOT_OK = 1  # some trial is not ok, a step is SLOWER, a record cannot be read
BAD_INPUT = 2  # nothing has run
NOTHING_JUDGED = 3  # `compare` alone
INTERRUPTED = 130  # what shells give a program that SIGINT has ended
CLOSED = 141  # what shells give a program that SIGPIPE has ended
