"""Where a parameter's gradient is before and after the reduction."""
