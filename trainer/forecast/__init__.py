"""How long a step will take under each way of synchronising, from a short measurement. Pure: no torch."""
