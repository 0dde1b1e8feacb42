"""Real processes, real engines: what a monitor writes of a sharded training, against the unsharded one."""
