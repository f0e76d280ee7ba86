"""The servicers: each translates one proto service to calls of the packages below."""
