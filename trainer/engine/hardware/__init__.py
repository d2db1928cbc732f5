"""Hardware of a rank: device, threads, precision, compiler; and the checks of them."""
