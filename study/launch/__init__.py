"""From a list of configs to finished runs: plan, then one of the launchers. Imports no torch itself."""
