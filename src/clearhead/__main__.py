"""`python -m clearhead`, and the entry point of the command `clearhead`."""

from clearhead.cli.import_path import remove_from_import_path

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    # First of all: the current folder may be a model folder, and Python or PYTHONPATH may have put it on the path.
    remove_from_import_path("")
    from clearhead.cli.main import run

    run()


if __name__ == "__main__":
    main()
