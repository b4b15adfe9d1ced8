"""The paper's lab: data sets, streams, networks, experiments and figures.

`superpose_lab.data` and `superpose_lab.networks` are for your own experiments; the command
`superpose-lab` runs those of the paper.
"""
