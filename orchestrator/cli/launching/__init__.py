"""The steps of the commands that start containers: launch, test, bench, plan."""
