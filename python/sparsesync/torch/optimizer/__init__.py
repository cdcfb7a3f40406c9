"""Between backward and the next forward pass: gradients clipped and scaled, and optimizers that step as gradients arrive."""
