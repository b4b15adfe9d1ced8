from lab.timed import pair
from small_data import clients, listed, site, small

__all__ = ["clients", "listed", "pair", "site", "small"]
