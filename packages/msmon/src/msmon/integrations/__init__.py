"""One line for trainers that own the training loop: Hugging Face's, Lightning's, ultralytics', MindSpore's.

Each module imports its trainer; nothing is imported here.
"""
