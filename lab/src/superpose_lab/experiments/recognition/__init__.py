"""Protocols of recognition: the task of an input is recognised instead of given."""
