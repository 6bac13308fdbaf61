"""The options of all optimizers that do something in a step besides the update by the rule, a file for each."""
