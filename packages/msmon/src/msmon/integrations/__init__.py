"""One line for trainers that own the training loop: Hugging Face's and Lightning's.

Each module imports its trainer; nothing is imported here.
"""
