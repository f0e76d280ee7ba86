"""The command line. Slow imports stay inside the commands, so that --help is fast."""
