"""`msmon run`: the monitor comes into a training whose script does not mention it.

The launched command is given an environment in which every Python process imports `site/sitecustomize.py` first. That
watches what the program imports, and puts the monitor onto what trains (`torch_trainings`, `mindspore_trainings`), or
into the callbacks of a trainer that has some (`trainers`). Nothing here imports a framework before the program has.
"""
