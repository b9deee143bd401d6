"""`holdfast bench`: how fast a store is on the user's own machine, beside the floor that it stands on."""
