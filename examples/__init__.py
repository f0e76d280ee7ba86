"""Programs to read and to run: each shows one use of Airlock."""
