"""What handlers share: the services of a broker, and requests that name many things."""
