from small_data import clients, coded, listed, site, small

__all__ = ["clients", "coded", "listed", "site", "small"]
