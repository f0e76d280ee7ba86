"""File calls, with the tool user's rights and never through a link.

    entries                                    a place, and what is there
    workspace_mode                             tool code may not lock itself out
    read_files, write_files, edit_files, tree_files, replacement    the calls; a file is replaced whole or not at all
    search, glob, grep, walk                   finding names and text
    child_work, thread_work                    what may take long, beside the server's loop

Imports limits; programs and the server import it.
"""
