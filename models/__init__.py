"""What is computed: ratings, privacy, recommenders, metrics. Knows no Prefect, MLflow, disk or clock."""
