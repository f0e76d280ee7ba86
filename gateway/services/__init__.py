"""The servicers: each translates one proto service to the rooms behind it."""
