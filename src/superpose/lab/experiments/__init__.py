"""The paper's experiments as small configs; torch is imported when one is run, not before."""
