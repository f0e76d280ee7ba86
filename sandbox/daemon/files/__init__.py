"""File calls, with the tool user's rights and never through a link.

    read_files, write_files, tree_files  the calls
    search                               finding names and text
    slow_work                            slow work outside the server's event loop

Start at `answer_file_call` of `../serving/calls.py`. Imports daemon layers below 5; programs and the server import it.
"""
