"""`python -m sherd` is the `sherd` command."""

from sherd.cli.main import entry

if __name__ == "__main__":
    entry()
