"""Example programs. Each shows one use of Airlock."""
