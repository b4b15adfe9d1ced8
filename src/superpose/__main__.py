"""`python -m superpose`, and with several processes `torchrun -m superpose`."""

from superpose.cli import main

main()
