"""What the HTTP API says of itself: the types of its answers and the errors of each route."""
