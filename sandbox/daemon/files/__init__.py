"""File calls, with the tool user's rights and never through a link.

    read_files, write_files, tree_files  the calls
    archive                              the workspace as a whole
    search                               finding names and text
    slow_work                            slow work outside the server's event loop

Start at `tree_files.py`; `serving/calls.py` calls them. Imports daemon layers below 5; programs and the server import
it.
"""
