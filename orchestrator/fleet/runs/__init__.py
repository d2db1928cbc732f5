"""A run on its nodes: started, found again, its lines read, stopped, cleared away."""
