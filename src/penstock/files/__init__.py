"""How contents reach files and buckets, for the event store and for targets alike."""
