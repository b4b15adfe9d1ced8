from lab.timed import pair

__all__ = ["pair"]
