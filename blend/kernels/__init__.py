"""What numba and Triton compile; nothing else imports them. Addresses and shapes: knows no context and no model."""
