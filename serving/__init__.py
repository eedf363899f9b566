"""What people reach: the web service. It knows releases, and no ratings but those it is asked about."""
