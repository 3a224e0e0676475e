"""An ordinary Flower app whose honest clients add a vector that the judge knows."""
