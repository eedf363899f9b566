"""What happens, in order: the Prefect flows and the `jali` command."""
