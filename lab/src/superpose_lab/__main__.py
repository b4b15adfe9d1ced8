"""`python -m superpose_lab` is `superpose-lab`."""

from superpose_lab.cli import main

main()
