"""What the rest of Holdfast asks of a store and of a clock."""
