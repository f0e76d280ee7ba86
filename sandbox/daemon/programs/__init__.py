"""Programs and background processes, run by the server, which has no capabilities at all.

    exec, exec_request               one program, from its start to its outcome
    output, spill                    its output within bounds, and in a file
    processes, background_process    programs that outlive a call
    process_io, terminal, pipes      their input and output

Start at `exec.py`. Imports daemon layers below 6.
"""
