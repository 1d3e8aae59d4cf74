"""`python -m tamis` is the `tamis` command."""

from tamis.cli.main import main

main()
