"""Forms: how one sort of module binds its weights, and computes rows of many tasks."""
