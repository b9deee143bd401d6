"""`python -m holdfast`: the command line, without its script."""

from holdfast.cli.main import main

if __name__ == "__main__":
    main()
