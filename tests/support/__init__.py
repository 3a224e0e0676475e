"""What several tests share: oracles, small runs, networks of Flower processes."""
