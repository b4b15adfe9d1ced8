"""The paper's experiments: `settings` says what each is, `jobs` runs them."""
