"""What is promised and how it is kept: specification, guarantee, noise."""
