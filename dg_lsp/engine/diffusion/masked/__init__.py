"""Published models that fill masks in any order and read the whole text in both directions in every pass."""
