"""Strategy matrices: what C is, and how far one user moves it."""
