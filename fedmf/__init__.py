"""User-level differentially private federated learning with correlated noise."""
