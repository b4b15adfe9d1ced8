"""The task found, not told: `protocols` says what is learned, `measures` what is measured of it."""
