"""What every request goes through: bounds, who may ask, bodies, problems, counts."""
