"""Programs and background processes, run by the server, which has no capabilities at all.

exec, exec_request, program_io                    one program, from its start to its outcome
output, characters                                its output within bounds
spill, spill_quota                                its output in a file
processes, process_request, background_process    programs that outlive a call
process_io, terminal, pipes                       their input and output
"""
