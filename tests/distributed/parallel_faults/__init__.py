"""A bench: trainings on several ranks, healthy or with one fault of parallelism, held up against `msmon verify`."""
