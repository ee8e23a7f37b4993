"""`python -m surefoot`: the command line."""

from surefoot.cli import main

main()
