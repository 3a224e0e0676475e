"""An ordinary Flower app: a small CNN on handwritten digits."""
