"""The `sherd` command.

In: a command line. Out: results on stdout, everything else on stderr, and an exit code. May import
everything; each command imports what it needs only when it runs, so that `sherd --help` answers at once.
"""
