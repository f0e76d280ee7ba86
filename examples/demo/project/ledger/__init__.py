"""A small ledger: reads a bank's export and writes statements."""
