"""What a failed rank's last words mean: one small rule for each cause, one module for each area of causes. Pure."""
