"""How fast this machine writes, beside the libraries one could use instead."""
