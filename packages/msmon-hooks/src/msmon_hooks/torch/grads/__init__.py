"""Where a parameter's gradient is before and after the reduction over ranks: one file per training engine."""
