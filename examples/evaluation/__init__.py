"""An evaluation of the default agent with any model: 20 small tasks, run by inspect-ai; `make eval MODEL=...`.

evaluation_task.py says what a task is, tasks/ has the tasks. inspect_task.py makes a task of inspect-ai of them, whose
solver starts a run of the gateway's agent, and whose scorer looks at the files and the events of the run.
"""
