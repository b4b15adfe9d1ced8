from small_data import clients, listed, site, small

__all__ = ["clients", "listed", "site", "small"]
