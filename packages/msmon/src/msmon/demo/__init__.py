"""A small GPT, trained on real text on the CPU, with a fault that the monitor finds: `msmon demo`."""
