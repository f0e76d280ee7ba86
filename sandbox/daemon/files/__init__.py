"""File calls, with the tool user's rights and never through a link.

    calls                                      which function answers which call
    entries                                    descriptions of paths
    workspace_mode                             keeps the workspace accessible to its owner
    read_files, write_files, edit_files, tree_files    the calls
    replacement                                replaces a file atomically
    search, glob, grep, walk                   finding names and text
    child_work, thread_work                    slow work outside the server's event loop

Imports limits; programs and the server import it.
"""
