"""Programs and background processes, run by the server, which has no capabilities at all.

    pipes                                            pipes to and from programs
    exec, exec_request, program_io, ending           one program, from its start to its outcome
    output, output_sender, characters                its output within bounds
    spill, spill_quota, private_file                 its output in a file
    processes, process_request, background_process   programs that outlive a call
    process_streams, process_input, process_output, output_file, rate_limit, terminal    their input and output

Imports files, limits and the supervisor.
"""
