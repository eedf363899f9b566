"""What ratings must be: Great Expectations suites as JSON, and `suites`, the one module that loads them."""
