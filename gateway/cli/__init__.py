"""The command line, one file a subcommand. Imports of the heavy parts stay inside the commands: help is instant."""
