"""Any command of the user: its spec and plan."""
