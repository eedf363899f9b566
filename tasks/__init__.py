"""What touches the world: files and databases, Great Expectations, MLflow, the ledger."""
